package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestANewcomerUsesEveryPartOnTheEmbeddedStore(t *testing.T) {
	s := start(t)
	t.Logf("ready %s after process start (promised: 2 s)", s.started.Round(time.Millisecond))
	if s.started > 6*time.Second {
		t.Errorf("ready after %s, want 2 s", s.started)
	}
	out, err := exec.Command("sh", "-c", s.pasted).Output()
	if err != nil || !strings.Contains(string(out), `"key_types"`) {
		t.Fatalf("the printed line %q does not work: %v\n%s", s.pasted, err, out)
	}

	created := s.call(201, "POST", "/v1/sessions", `{"user_id":"ada"}`)
	token := created.text("token")
	if got := s.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`); got.body["active"] != true {
		t.Errorf("a fresh session is not active: %s", got.raw)
	}
	s.call(200, "POST", "/v1/users/ada/logout-all", `{}`)
	if got := s.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`); got.body["active"] != false || got.text("reason") != "epoch" {
		t.Errorf("a session is active after logout-all: %s", got.raw)
	}

	for range 20 {
		s.call(200, "POST", "/v1/ratelimit/check", `{"policy":"default","descriptors":{"tenant":"t","user":"u"},"cost":1}`)
	}
	refused := s.call(429, "POST", "/v1/ratelimit/check", `{"policy":"default","descriptors":{"tenant":"t","user":"u"},"cost":20}`)
	if refused.header.Get("Retry-After") == "" || refused.text("code") != "rate_limited" {
		t.Errorf("a refusal without Retry-After or code: %v %s", refused.header, refused.raw)
	}

	first := s.call(200, "POST", "/v1/leases/report/acquire", `{"owner":"w1","ttl_ms":60000,"request_id":"r1"}`)
	again := s.call(200, "POST", "/v1/leases/report/acquire", `{"owner":"w1","ttl_ms":60000,"request_id":"r1"}`)
	if first.number("fencing_token") != again.number("fencing_token") || first.text("lease_id") != again.text("lease_id") {
		t.Errorf("a retried request_id got another grant: %s then %s", first.raw, again.raw)
	}
	if held := s.call(409, "POST", "/v1/leases/report/acquire", `{"owner":"w2","ttl_ms":60000}`); held.text("code") != "lease_held" {
		t.Errorf("code %q, want lease_held", held.text("code"))
	}
	write := func(want int, token int64, value string) answer {
		t.Helper()
		return s.call(want, "PUT", "/v1/protected/report/total", fmt.Sprintf(`{"fencing_token":%d,"mode":"high_water","value":%s}`, token, value))
	}
	write(200, first.number("fencing_token"), `{"sum":1}`)
	s.call(204, "POST", "/v1/leases/report/release", fmt.Sprintf(`{"lease_id":%q,"fencing_token":%d}`, first.text("lease_id"), first.number("fencing_token")))
	second := s.call(200, "POST", "/v1/leases/report/acquire", `{"owner":"w2","ttl_ms":60000}`)
	write(200, second.number("fencing_token"), `{"sum":2}`)
	if stale := write(409, first.number("fencing_token"), `{"sum":1}`); stale.text("code") != "stale_fencing_token" {
		t.Errorf("code %q, want stale_fencing_token", stale.text("code"))
	}
	if got := s.call(200, "GET", "/v1/protected/report/total", ""); fmt.Sprint(got.body["value"]) != "map[sum:2]" {
		t.Errorf("a stale write shows: %s", got.raw)
	}
}

// TestAcknowledgedWritesSurviveKill9 kills the process in the middle of a load
// and asks after the restart for everything that was acknowledged.
func TestAcknowledgedWritesSurviveKill9(t *testing.T) {
	s := start(t)
	const workers = 16
	granted := make([]int64, workers)   // the last acknowledged token per worker's own resource
	tokens := make([][]string, workers) // acknowledged session tokens
	var wg sync.WaitGroup
	var enough sync.WaitGroup
	enough.Add(workers)
	for w := range workers {
		wg.Go(func() {
			for n := 0; ; n++ {
				if n == 20 {
					enough.Done()
				}
				lease, err := s.try("POST", fmt.Sprintf("/v1/leases/job-%d/acquire", w), s.key, `{"owner":"w","ttl_ms":60000}`)
				if err != nil {
					return // killed
				}
				if lease.number("fencing_token") <= granted[w] {
					t.Errorf("worker %d: token %d after %d", w, lease.number("fencing_token"), granted[w])
				}
				granted[w] = lease.number("fencing_token")
				login, err := s.try("POST", "/v1/sessions", s.key, fmt.Sprintf(`{"user_id":"user-%d"}`, w))
				if err != nil {
					return
				}
				tokens[w] = append(tokens[w], login.text("token"))
				if _, err := s.try("POST", fmt.Sprintf("/v1/leases/job-%d/release", w), s.key, fmt.Sprintf(`{"lease_id":%q,"fencing_token":%d}`, lease.text("lease_id"), granted[w])); err != nil {
					return
				}
			}
		})
	}
	enough.Wait()
	s.kill()
	wg.Wait()
	key := s.key
	s.restart()
	if s.key != key {
		t.Error("the first key is another after a restart")
	}
	sessions := 0
	for w := range workers {
		lease := s.call(200, "GET", fmt.Sprintf("/v1/leases/job-%d", w), "")
		if got := lease.number("fencing_token"); got < granted[w] {
			t.Errorf("worker %d: token %d was acknowledged, after the restart it is %d", w, granted[w], got)
		}
		for _, token := range tokens[w] {
			sessions++
			if got := s.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`); got.body["active"] != true {
				t.Errorf("worker %d: an acknowledged session is gone: %s", w, got.raw)
			}
		}
	}
	t.Logf("%d leases and %d sessions acknowledged before kill -9, all there after it", workers, sessions)
}

func TestABackupTakenInUseServesTheSameSessions(t *testing.T) {
	s := start(t)
	token := s.call(201, "POST", "/v1/sessions", `{"user_id":"ada"}`).text("token")
	lease := s.call(200, "POST", "/v1/leases/job/acquire", `{"owner":"w","ttl_ms":60000}`)
	dir := filepath.Join(t.TempDir(), "copy")
	if out, stderr, err := output(t, s.env, "backup", dir); err != nil {
		t.Fatalf("backup while serve runs: %v\n%s%s", err, out, stderr)
	}
	if _, _, err := output(t, s.env, "backup", dir); err == nil {
		t.Error("a backup over an existing folder was not refused")
	}
	restored := start(t, "COORD_DATA_DIR="+dir)
	if got := restored.call(200, "POST", "/v1/sessions/verify", `{"token":"`+token+`"}`); got.body["active"] != true {
		t.Errorf("the copy does not know the session: %s", got.raw)
	}
	if got := restored.call(200, "GET", "/v1/leases/job", ""); got.number("fencing_token") != lease.number("fencing_token") {
		t.Errorf("the copy has another token: %s", got.raw)
	}
	s.kill()
	if _, stderr, err := output(t, s.env, "backup", filepath.Join(t.TempDir(), "cold")); err != nil {
		t.Errorf("backup while nothing runs: %v\n%s", err, stderr)
	}
}

func TestKeysAreMadeWhileServeRunsAndWhileNot(t *testing.T) {
	s := start(t)
	create := func() string {
		t.Helper()
		out, stderr, err := output(t, s.env, "keys", "create", "--tenant", "acme", "--scopes", "leases:use,leases:read")
		if err != nil {
			t.Fatalf("keys create: %v\n%s", err, stderr)
		}
		return strings.TrimSpace(out)
	}
	warm := create()
	s.kill()
	cold := create()
	s.restart()
	for name, key := range map[string]string{"made while serve ran": warm, "made while it did not": cold} {
		if a, err := s.try("POST", "/v1/leases/x/acquire", key, `{"owner":"w","ttl_ms":1000}`); err != nil || (a.status != 200 && a.status != 409) {
			t.Errorf("%s: %v %d %s", name, err, a.status, a.raw)
		}
		if a, err := s.try("POST", "/v1/sessions", key, `{"user_id":"u"}`); err != nil || a.status != 403 {
			t.Errorf("%s, outside its scopes: %v %d", name, err, a.status)
		}
	}
	if a := s.call(404, "GET", "/v1/leases/x", ""); a.text("code") != "not_found" {
		t.Errorf("another tenant's lease: %s", a.raw)
	}
	if _, _, err := output(t, s.env, "keys", "create", "--tenant", "acme", "--scopes", "no:such"); err == nil {
		t.Error("an unknown scope was not refused")
	}
}

func TestTheDataFolderIsForItsOwnerAndOneProcess(t *testing.T) {
	s := start(t)
	dir := s.setting("COORD_DATA_DIR")
	for _, name := range []string{"first-key", "keys", "coordsvc.db", "admin.sock"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want 0600", name, info, err)
		}
	}
	second := spawn(t, "COORD_DATA_DIR="+dir)
	<-second.ended
	if _, failed := errors.AsType[*exec.ExitError](second.exit); !failed || !strings.Contains(second.stderr.String(), "COORD_DATA_DIR") {
		t.Errorf("a second process on the folder: %v\n%s", second.exit, second.stderr)
	}
}

func TestSigtermLetsARequestFinish(t *testing.T) {
	s := start(t)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.ended
	if s.exit != nil {
		t.Errorf("exit after SIGTERM: %v\n%s", s.exit, s.stderr)
	}
	s.restart()
	s.call(200, "GET", "/v1/key-types", "")
}

func TestABootstrapKeyWorksAndStaysRevoked(t *testing.T) {
	key := "csk_" + strings.Repeat("Ab3", 12)
	file := filepath.Join(t.TempDir(), "bootstrap")
	if err := os.WriteFile(file, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, "COORD_BOOTSTRAP_KEY_FILE="+file)
	list, err := s.try("GET", "/v1/api-keys", key, "")
	if err != nil || list.status != 200 {
		t.Fatalf("the bootstrap key: %v %d %s", err, list.status, list.raw)
	}
	for _, k := range list.body["api_keys"].([]any) {
		if k := k.(map[string]any); k["name"] == "bootstrap" {
			s.call(204, "DELETE", "/v1/api-keys/"+k["id"].(string), "")
		}
	}
	s.kill()
	s.restart()
	if a, err := s.try("GET", "/v1/key-types", key, ""); err != nil || a.status != 401 {
		t.Errorf("a revoked bootstrap key after a restart: %v %d", err, a.status)
	}
}

// What is no HTTP is answered as a problem, too.
func TestNoHTTPIsAProblem(t *testing.T) {
	s := start(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "EHLO there\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(conn) // until it is closed
	if err != nil || !strings.HasPrefix(string(said), "HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\n") {
		t.Errorf("%v %s", err, said)
	}
}
