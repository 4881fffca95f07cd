package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
)

// The admin socket lets coordsvc keys and coordsvc backup work on the data
// folder while serve holds its file. Whoever may open the socket may open the
// file too: it lies in the data folder, 0600, and asks for no key.
const adminSocket = "admin.sock"

// newKey is what coordsvc keys create asks for.
type newKey struct {
	Tenant    string       `json:"tenant"`
	Name      string       `json:"name"`
	Scopes    []auth.Scope `json:"scopes"`
	ExpiresAt time.Time    `json:"expires_at"`
}

// createdKey is its answer, the only one that holds the text.
type createdKey struct {
	ID     string       `json:"id"`
	Tenant string       `json:"tenant"`
	Key    string       `json:"key"`
	Scopes []auth.Scope `json:"scopes"`
}

func createKey(ctx context.Context, keys *auth.Manager, req newKey) (createdKey, error) {
	secret, key, err := keys.Create(ctx, req.Tenant, nil, auth.NewKey{Name: req.Name, Scopes: req.Scopes, ExpiresAt: req.ExpiresAt})
	if err != nil {
		return createdKey{}, err
	}
	return createdKey{ID: key.ID, Tenant: key.Tenant, Key: secret.Reveal(), Scopes: key.Scopes}, nil
}

// serveAdmin listens in the data folder, whose file this process holds. A
// socket that is already there is the rest of a process that ended.
func serveAdmin(dir string, keys *auth.Manager, store backupStore, log *slog.Logger) (*http.Server, error) {
	path := filepath.Join(dir, adminSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path) //nolint:noctx // a local socket, bound at once
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	server := &http.Server{Handler: adminHandler(keys, store), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the admin socket ended", "error", err)
		}
	}()
	return server, nil
}

func adminHandler(keys *auth.Manager, store backupStore) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /keys", func(w http.ResponseWriter, r *http.Request) {
		var req newKey
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		key, err := createKey(r.Context(), keys, req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		_ = json.NewEncoder(w).Encode(key) // a caller that went away sees it
	})
	mux.HandleFunc("GET /backup", func(w http.ResponseWriter, r *http.Request) {
		if _, err := store.Backup(r.Context(), w); err != nil {
			panic(http.ErrAbortHandler) // cuts the answer short, so that the reader sees it is not whole
		}
	})
	return mux
}

// adminCall asks the process that holds the data folder and hands its answer to read.
func adminCall(ctx context.Context, dir, method, path string, body any, read func(io.Reader) error) error {
	socket := filepath.Join(dir, adminSocket)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("another process holds the data folder, and its admin socket does not answer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return errors.Join(err, errors.New(string(bytes.TrimSpace(text))))
	}
	return read(resp.Body)
}
