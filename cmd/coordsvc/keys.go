package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/kv"
)

// keys runs coordsvc keys create. The key alone goes to stdout, what is known of it to stderr.
func keys(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	if len(args) == 0 || args[0] != "create" {
		return needsSubcommand(args, stdout, "usage: coordsvc keys create --tenant T [--name N] [--scopes a,b] [--expires-in 720h]")
	}
	fs := flag.NewFlagSet("coordsvc keys create", flag.ContinueOnError)
	tenant := fs.String("tenant", "", "the tenant that the key acts for")
	name := fs.String("name", "cli", "what people call the key")
	scopes := fs.String("scopes", "all", "scopes, separated by commas")
	expires := fs.Duration("expires-in", 0, "how long the key works; 0 = until it is revoked")
	c, err := loadConfig(fs, args[1:], getenv, stderr, needsStore, takesFlagsOnly(fs))
	if err != nil {
		return err
	}
	req := newKey{Tenant: *tenant, Name: *name, Scopes: parseScopes(*scopes)}
	if *expires != 0 {
		req.ExpiresAt = time.Now().Add(*expires)
	}
	key, err := createKeyAnywhere(ctx, c, req)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%s of tenant %s with %d scopes\n", key.ID, key.Tenant, len(key.Scopes))
	fmt.Fprintln(stdout, key.Key)
	return nil
}

func parseScopes(list string) []auth.Scope {
	if list == "all" {
		return auth.AllScopes()
	}
	var scopes []auth.Scope
	for s := range strings.SplitSeq(list, ",") {
		scopes = append(scopes, auth.Scope(strings.TrimSpace(s)))
	}
	return scopes
}

// createKeyAnywhere writes to the tables, to the file, or through the process that holds the file.
func createKeyAnywhere(ctx context.Context, c config, req newKey) (createdKey, error) {
	var key createdKey
	s, err := openStores(ctx, c)
	switch {
	case errors.Is(err, kv.ErrLocked):
		err = adminCall(ctx, c.dataDir, http.MethodPost, "/keys", req, func(r io.Reader) error {
			return json.NewDecoder(r).Decode(&key)
		})
		return key, err
	case err != nil:
		return key, err
	}
	if err = s.tablesStand(ctx, c); err == nil {
		key, err = createKey(ctx, auth.New(s.auth, auth.Options{}), req)
	}
	return key, errors.Join(err, s.close())
}
