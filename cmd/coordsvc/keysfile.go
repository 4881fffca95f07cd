package main

import (
	"bufio"
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// fileKeys are the secrets that a set of nodes shares.
type fileKeys struct {
	route []byte   // routes a user to their keys: fixed for the life of the tables
	seal  [][]byte // the last one seals, all of them open
}

const keySize = 32 // bytes

// limits is the secret that hides what the keys of rate limits in Redis are made of.
func (k fileKeys) limits() []byte {
	key, err := hkdf.Expand(sha256.New, k.route, "rate-limit keys", keySize)
	if err != nil {
		panic(err) // for longer keys only
	}
	return key
}

// loadKeys reads a file of "<name> <base64 of 32 bytes>" lines; blank lines
// and lines that begin with # are skipped.
func loadKeys(path string) (fileKeys, error) {
	raw, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return fileKeys{}, fmt.Errorf("read the keys file: %w", err)
	}
	keys, err := parseKeys(raw)
	if err != nil {
		return fileKeys{}, fmt.Errorf("keys file %s: %w", path, err)
	}
	return keys, nil
}

// parseKeys reports every mistake by its line number, never by its content.
func parseKeys(raw []byte) (fileKeys, error) {
	var keys fileKeys
	var mistakes []error
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, text, _ := strings.Cut(line, " ")
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
		switch {
		case err != nil || len(key) != keySize:
			mistakes = append(mistakes, fmt.Errorf("line %d: write <name> <base64 of %d bytes>", n, keySize))
		case name == "route" && keys.route != nil:
			mistakes = append(mistakes, fmt.Errorf("line %d: there is one route key only", n))
		case name == "route":
			keys.route = key
		case name == "seal":
			keys.seal = append(keys.seal, key)
		default:
			mistakes = append(mistakes, fmt.Errorf("line %d: a key is named route or seal", n))
		}
	}
	if err := lines.Err(); err != nil {
		mistakes = append(mistakes, err)
	}
	if len(mistakes) == 0 && keys.route == nil {
		mistakes = append(mistakes, errors.New("the route key is missing"))
	}
	if len(mistakes) == 0 && keys.seal == nil {
		mistakes = append(mistakes, errors.New("a seal key is missing"))
	}
	return keys, errors.Join(mistakes...)
}

// ensureKeys makes an embedded store's file of keys with the store. Beside a store
// that stands already it makes none: under another routing key no user there would
// be found again, and who was disabled or logged out could come back.
func ensureKeys(c config) error {
	path := keysPath(c)
	if c.keysFile != "" || !c.embedded() || exists(path) {
		return nil
	}
	if exists(filepath.Join(c.dataDir, storeFile)) {
		return fmt.Errorf("%s is missing beside a store: put it back, from a backup or wherever COORD_KEYS_FILE named it before", path)
	}
	if err := os.MkdirAll(c.dataDir, 0o700); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	if err := makeKeys(path); err != nil {
		return fmt.Errorf("make the keys file: %w", err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path) //nolint:gosec // the operator names the folder
	return err == nil
}

func makeKeys(path string) error {
	var b strings.Builder
	for _, name := range []string{"route", "seal"} {
		key := make([]byte, keySize)
		rand.Read(key) // never fails: it ends the process where there is no randomness
		fmt.Fprintf(&b, "%s %s\n", name, base64.StdEncoding.EncodeToString(key))
	}
	return writeSecret(path, b.String())
}

// writeSecret creates the file for its owner only, whole or not at all, and on disk when it returns.
func writeSecret(path, text string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp-*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name())) //nolint:gosec // made above
		}
	}()
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil { //nolint:gosec // the operator names the folder
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes a rename in the folder survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // the operator's data folder
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// readKeyLine reads a file that holds one API key.
func readKeyLine(path string) (string, error) {
	raw, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return "", err
	}
	line := strings.TrimSpace(string(raw))
	if !strings.HasPrefix(line, "csk_") || strings.ContainsAny(line, " \t\r\n") {
		return "", fmt.Errorf("%s: write one line that begins with csk_", path)
	}
	return line, nil
}
