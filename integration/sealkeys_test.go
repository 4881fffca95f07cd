package integration

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// keyed starts a node whose keys file has the seal keys in this order.
func keyed(t *testing.T, env []string, key string, seals ...string) *service {
	t.Helper()
	line := func(name, of string) string {
		return name + " " + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte(of), 32)) + "\n"
	}
	text := line("route", "k")
	for _, of := range seals {
		text += line("seal", of)
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, append(env, "COORD_KEYS_FILE="+path)...)
	s.key = key
	return s
}

// once sends a login under a name, and returns the status and the header that says when to repeat it.
func (s *service) once(name string) (status int, again string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/v1/sessions", strings.NewReader(`{"user_id":"ann"}`))
	if err != nil {
		s.t.Fatal(err)
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + s.key, "Content-Type": "application/json", "Idempotency-Key": name} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("Retry-After")
}

// A seal key changes while nodes serve, in two rounds as the runbook says: of two that
// meet in a round each opens what the other seals. In one round they do not.
func TestSealKeyChangesInTwoRounds(t *testing.T) {
	t.Parallel()
	db := engine.DynamoDB(t)
	env, key := production(t, db.Env(), db.Prefix(t))
	createTables(t, env)
	before, first, second := keyed(t, env, key, "o"), keyed(t, env, key, "n", "o"), keyed(t, env, key, "o", "n")
	for range 3 {
		before.call(201, "POST", "/v1/sessions", `{"user_id":"ann"}`)
	}
	n := 0
	sealed := func(by *service) (name, cursor string) {
		n++
		name = fmt.Sprint("request-", n)
		if status, _ := by.once(name); status != 201 {
			t.Fatalf("the first answer is %d", status)
		}
		return name, by.call(200, "GET", "/v1/users/ann/sessions?limit=1", "").text("next_cursor")
	}
	for _, round := range [][2]*service{{before, first}, {first, second}} {
		for i, by := range round {
			name, cursor := sealed(by)
			other := round[1-i]
			if status, _ := other.once(name); status != 201 {
				t.Errorf("a stored answer is %d on another node", status)
			}
			other.call(200, "GET", "/v1/users/ann/sessions?cursor="+cursor, "")
		}
	}
	name, cursor := sealed(second)
	before.call(422, "GET", "/v1/users/ann/sessions?cursor="+cursor, "")
	if status, again := before.once(name); status != 503 || again == "" {
		t.Errorf("without the key: %d, to be repeated after %q s", status, again)
	}
	if status, _ := first.once(name); status != 201 {
		t.Errorf("repeated on a node with the key: %d", status)
	}
}
