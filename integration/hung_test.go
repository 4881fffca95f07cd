package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

// unread sends a request that, where it writes data, knows of none.
func (s *service) unread(method, path, body string) (a answer, err error) {
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if method == http.MethodPut {
		req.Header.Set("If-Match", `"0"`)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	if a.status == http.StatusNoContent {
		return a, nil
	}
	raw, err := io.ReadAll(resp.Body)
	a.raw = string(raw)
	return a, errors.Join(err, json.Unmarshal(raw, &a.body))
}

// While DynamoDB hangs every route of the sessions answers within the 8 s that a
// request has, and says that nothing happened where nothing can have.
func TestSessionRoutesWhileDynamoDBHangs(t *testing.T) {
	t.Parallel()
	db, cache := engine.StartDynamo(t, ""), engine.StartRedis(t)
	env, key := production(t, db.Env(), engine.FreshPrefix())
	createTables(t, env)
	s := start(t, append(env, "COORD_REDIS_URL="+cache.URL(), "COORD_REDIS_BUDGET_MS=100")...)
	s.key = key
	made := s.call(201, "POST", "/v1/sessions", `{"user_id":"ann"}`)
	token, handle := made.text("token"), made.body["session"].(map[string]any)["handle"].(string)
	var warm []string
	for i := range 30 {
		warm = append(warm, s.call(201, "POST", "/v1/sessions", fmt.Sprintf(`{"user_id":"warm-%d"}`, i)).text("token"))
		s.verified("cached", warm[i], "cache", false)
	}
	db.Pause(t)

	type ask struct{ method, path, body, code string }
	byToken := `{"token":"` + token + `"}`
	demand := func(asks ...ask) {
		t.Helper()
		var wg sync.WaitGroup
		for _, r := range asks {
			wg.Go(func() {
				began := time.Now()
				a, err := s.unread(r.method, r.path, r.body)
				took := time.Since(began)
				t.Log(r.method, r.path, a.status, a.body["code"], took.Round(10*time.Millisecond))
				if err != nil || took > 10*time.Second {
					t.Errorf("%s %s: %v after %v", r.method, r.path, err, took)
				}
				if code, _ := a.body["code"].(string); code != r.code {
					t.Errorf("%s %s: %d %s, want %q", r.method, r.path, a.status, a.raw, r.code)
				}
			})
		}
		wg.Wait()
	}
	demand(
		ask{"POST", "/v1/sessions/revoke", `{"token":"garbage"}`, ""},
		ask{"POST", "/v1/sessions/rotate", `{"token":"garbage"}`, "session_not_active"},
	)
	demand(
		ask{"POST", "/v1/sessions", `{"user_id":"ann"}`, "store_unavailable"},
		ask{"POST", "/v1/sessions/rotate", byToken, "store_unavailable"},
		ask{"POST", "/v1/sessions/revoke", byToken, "store_unavailable"},
		ask{"GET", "/v1/sessions/" + handle, "", "store_unavailable"},
		ask{"DELETE", "/v1/sessions/" + handle, "", "store_unavailable"},
		ask{"GET", "/v1/sessions/" + handle + "/data", "", "store_unavailable"},
		ask{"PUT", "/v1/sessions/" + handle + "/data", `1`, "store_unavailable"},
		ask{"GET", "/v1/users/ann/sessions", "", "store_unavailable"},
		ask{"GET", "/v1/users/ann/epochs", "", "store_unavailable"},
		ask{"POST", "/v1/users/ann/logout-all", `{}`, "outcome_unknown"},
		ask{"POST", "/v1/users/ann/permission-epoch", `{}`, "outcome_unknown"},
		ask{"POST", "/v1/users/ann/disable", `{"reason":"r"}`, "outcome_unknown"},
		ask{"POST", "/v1/users/ann/enable", `{"reason":"r"}`, "outcome_unknown"},
		ask{"DELETE", "/v1/users/ann", `{"reason":"r","confirm":"ann"}`, "outcome_unknown"},
		ask{"POST", "/v1/tenant/logout-all", `{"reason":"r","confirm":"default"}`, "outcome_unknown"},
	)
	// The tenant's epoch is as old by now as it may be, and so is every copy.
	time.Sleep(5 * time.Second)
	var verifies []ask
	for _, w := range warm {
		verifies = append(verifies, ask{"POST", "/v1/sessions/verify", `{"token":"` + w + `"}`, "store_unavailable"})
	}
	demand(verifies...)
}
