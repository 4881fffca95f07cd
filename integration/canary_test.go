package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/keytype"
)

// S38: after everything was used, rightly, wrongly and without stores, no token and
// no key is anywhere but with its callers, and whatever is stored has a type.
func TestS38NoSecretIsKept(t *testing.T) {
	for name, mode := range map[string]keytype.Mode{"DynamoDB and Redis": {DynamoDB: true, Redis: true}, "embedded with Redis": {Redis: true}} {
		t.Run(name, func(t *testing.T) {
			e := useEverything(t, mode)
			written := map[string]string{
				"metrics":  e.page("/metrics"),
				"events":   e.call(200, "GET", "/v1/events?limit=100", "").raw,
				"sessions": e.call(200, "GET", "/v1/users/"+canaryUser+"/sessions", "").raw,
				"keys":     e.call(200, "GET", "/v1/api-keys", "").raw,
			}
			inRedis := e.inRedis()
			e.kill()
			if out, stderr, err := output(t, e.env, "tables", "raise-floor", "--to", "5"); err != nil {
				t.Fatalf("raise-floor: %v %s %s", err, out, stderr)
			}
			written["log"], written["stdout"] = e.stderr.String(), e.stdout.String()
			if e.db != nil && !strings.Contains(written["log"], "store failed") {
				t.Errorf("the log tells of no failure:\n%s", written["log"])
			}
			written["snapshot of Redis"] = e.snapshot()
			all := inRedis
			if e.db != nil {
				all = append(all, e.inTables()...)
			} else {
				all = append(all, e.inFile()...)
				written["file"] = string(e.file())
			}
			for _, k := range all {
				written[k.store+" "+k.key] = string(k.raw)
			}
			for place, text := range written {
				e.checkSecrets(t, place, text)
			}
			e.checkRedisKeys(t, inRedis)
			t.Run("types", func(t *testing.T) { e.checkTypes(t, all) })
			t.Logf("%d secrets in %d places", len(e.secrets), len(written))
		})
	}
}

// snapshot is the file that Redis saves.
func (e *everything) snapshot() string {
	e.t.Helper()
	if err := e.client.Save(e.t.Context()).Err(); err != nil {
		e.t.Fatal(err)
	}
	dir := e.client.ConfigGet(e.t.Context(), "dir").Val()["dir"]
	raw, err := os.ReadFile(filepath.Join(dir, "dump.rdb"))
	if err != nil || !bytes.Contains(raw, []byte(redisPrefix)) {
		e.t.Fatalf("%d bytes, %v", len(raw), err)
	}
	return string(raw)
}

func (e *everything) checkSecrets(t *testing.T, place, text string) {
	t.Helper()
	if text == "" {
		t.Errorf("%s: nothing was read", place)
	}
	for secret, what := range e.secrets {
		for _, form := range forms(secret) {
			if at := strings.Index(text, form); at >= 0 {
				t.Errorf("%s: %s, as …%.60q", place, what, text[max(0, at-20):])
				break
			}
		}
	}
}

// forms are how bytes are written: as they are, in hex, and in base64, where
// it depends on how many bytes stand before them.
func forms(secret string) []string {
	all := []string{secret, hex.EncodeToString([]byte(secret))}
	for before := range 3 {
		text := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", before) + secret))
		whole := text[before*4/3+min(before, 1) : len(text)-2] // digits that hold nothing else
		all = append(all, whole, strings.NewReplacer("+", "-", "/", "_").Replace(whole))
	}
	return all
}

func (e *everything) checkRedisKeys(t *testing.T, all []kept) {
	t.Helper()
	for _, k := range all {
		if k.ttl <= 0 {
			t.Errorf("%s has no TTL", k.key)
		}
		if !strings.HasPrefix(k.key, redisPrefix) || strings.Contains(k.key, canaryUser) {
			t.Errorf("%s holds a user's id, or is without the prefix", k.key)
		}
	}
}
