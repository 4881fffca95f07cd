package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/coordsvc/coordsvc/internal/kv"
)

// backupStore writes one consistent copy of itself.
type backupStore interface {
	Backup(ctx context.Context, w io.Writer) (int64, error)
}

// backup copies the embedded store and its keys to a new folder, which serves as a data folder.
func backup(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("coordsvc backup", flag.ContinueOnError)
	c, err := loadConfig(fs, args, getenv, stderr)
	switch {
	case err != nil:
		return err
	case fs.NArg() != 1:
		return errors.New("usage: coordsvc backup DIR, where DIR is made")
	case !c.embedded():
		return errors.New("backup copies the embedded store; DynamoDB tables have point-in-time recovery")
	}
	dir := fs.Arg(0)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := backupTo(ctx, c, dir); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	fmt.Fprintf(stdout, "backup written; to use it: coordsvc serve --data-dir %s\n", dir)
	return nil
}

func backupTo(ctx context.Context, c config, dir string) error {
	raw, err := os.ReadFile(keysPath(c)) //nolint:gosec // the operator names the file; without its route key no session in the copy could be found
	if err != nil {
		return err
	}
	if err := writeSecret(filepath.Join(dir, "keys"), string(raw)); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, storeFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the operator names the folder
	if err != nil {
		return err
	}
	err = copyStore(ctx, c, f)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return syncDir(dir)
}

// copyStore writes the file's items to w, itself or through the process that holds the file.
func copyStore(ctx context.Context, c config, w io.Writer) error {
	out := bufio.NewWriter(w)
	store, err := kv.Open(filepath.Join(c.dataDir, storeFile), kv.BoltOptions{})
	switch {
	case errors.Is(err, kv.ErrLocked):
		err = adminCall(ctx, c.dataDir, http.MethodGet, "/backup", nil, func(r io.Reader) error {
			_, err := io.Copy(out, r)
			return err
		})
	case err == nil:
		_, err = store.Backup(ctx, out)
		err = errors.Join(err, store.Close())
	}
	return errors.Join(err, out.Flush())
}
