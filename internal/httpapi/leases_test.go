package httpapi

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
)

// L15: a record in mode lease, which is the default, refuses a holder from the takeover on.
func TestL15LeasedRecordRoutes(t *testing.T) {
	s := startService(t)
	const path = "/v1/protected/job/state"
	acquire := func() (id string) {
		return s.must(200, s.post("/v1/leases/job/acquire", `{"owner":"w","ttl_ms":1000}`)).field("lease_id")
	}
	put := func(token, id, rest string) answer {
		return s.put(path, `{"fencing_token":`+token+`,"lease_id":"`+id+`",`+rest+`"value":{"n":1}}`)
	}
	put("1", "lse_x", ``).refused(t, 422, "invalid_value") // nothing was ever granted
	first := acquire()
	put("1", first, ``).is(t, 200, `{"fencing_token":1,"sequence":1,"version":1}`)
	put("1", first, `"mode":"lease","sequence":9,`).is(t, 200, `{"fencing_token":1,"sequence":9,"version":2}`)
	put("1", first, `"sequence":9,`).is(t, 200, `{"fencing_token":1,"sequence":9,"version":2}`)
	s.get(path).is(t, 200, `{"fencing_token":1,"mode":"lease","sequence":9,"value":{"n":1},"version":2}`)
	s.clock.advance(time.Hour)
	put("1", first, ``).is(t, 200, `{"fencing_token":1,"sequence":10,"version":3}`)
	second := acquire()
	before := s.items()
	if a := put("1", first, ``); a.status != 409 || a.field("code") != "stale_fencing_token" || a.field("high_water") != "2" {
		t.Errorf("the holder before writes: %s", a.body)
	}
	put("2", first, ``).refused(t, 409, "stale_fencing_token")
	put("3", second, ``).refused(t, 422, "invalid_value")
	s.put(path, `{"fencing_token":2,"mode":"high_water","value":1}`).refused(t, 422, "invalid_value")
	s.unchanged(before)
	put("2", second, ``).is(t, 200, `{"fencing_token":2,"sequence":1,"version":4}`)
	s.post("/v1/leases/job/release", `{"lease_id":"`+second+`","fencing_token":2}`).is(t, 204, ``)
	put("2", second, ``).refused(t, 409, "stale_fencing_token")
}

func TestForceReleaseRoute(t *testing.T) {
	s := startService(t)
	const path = "/v1/leases/job"
	force := func(body string) answer { return s.post(path+"/force-release", body) }
	force(`{"fencing_token":1,"reason":"x"}`).refused(t, 409, "lease_lost")
	id := s.must(200, s.post(path+"/acquire", `{"owner":"w","ttl_ms":60000,"request_id":"q"}`)).field("lease_id")
	force(`{"fencing_token":2,"reason":"x"}`).refused(t, 409, "lease_lost")
	force(`{"fencing_token":1,"reason":""}`).refused(t, 422, "invalid_value")
	force(`{"fencing_token":1,"reason":"it hangs","request_id":"f"}`).is(t, 200, `{"fencing_token":2}`)
	force(`{"fencing_token":1,"reason":"it hangs","request_id":"f"}`).is(t, 200, `{"fencing_token":2}`)
	force(`{"fencing_token":1,"reason":"it hangs"}`).refused(t, 409, "lease_lost")
	if a := s.get(path); a.field("held") != "false" || a.field("fencing_token") != "2" {
		t.Errorf("after it: %s", a.body)
	}
	s.post(path+"/renew", `{"lease_id":"`+id+`","fencing_token":1,"ttl_ms":1000}`).refused(t, 409, "lease_lost")
	s.post(path+"/acquire", `{"owner":"w","ttl_ms":60000,"request_id":"q"}`).refused(t, 409, "request_expired")
	if a := s.must(200, s.post(path+"/acquire", `{"owner":"v","ttl_ms":60000}`)); a.field("fencing_token") != "3" {
		t.Errorf("the next grant: %s", a.body)
	}
	if a := s.must(200, s.get("/v1/events")); strings.Count(a.body, `"action":"lease_force"`) < 3 || !strings.Contains(a.body, `"reason":"it hangs"`) || !strings.Contains(a.body, `"subject":"job"`) {
		t.Errorf("who did it, and why, is not recorded: %s", a.body)
	}
}

// Whoever may only write cannot have a resource that was never leased run out of tokens.
func TestAdmitLeavesTokensForTheFirstGrant(t *testing.T) {
	s := startService(t)
	writer := s.as(s.newKey("default", auth.FencingWrite))
	admit := func(s *service, resource, token string) answer {
		return s.post("/v1/fences/"+resource+"/admit", `{"fencing_token":`+token+`}`)
	}
	before := s.items()
	for _, token := range []string{"4503599627370497", "9007199254740991"} {
		if a := admit(writer, "a", token); a.status != 403 || a.field("code") != "forbidden_scope" || a.field("scope") != "leases:force" {
			t.Errorf("token %s: answered %d %s", token, a.status, a.body)
		}
	}
	admit(writer, "a", "9007199254740992").refused(t, 422, "invalid_value")
	s.unchanged(before)
	s.must(200, admit(writer, "a", "4503599627370496"))
	if a := s.must(200, s.post("/v1/leases/a/acquire", `{"owner":"w","ttl_ms":1000}`)); a.field("fencing_token") != "4503599627370497" {
		t.Errorf("the first grant: %s", a.body)
	}
	admit(s, "a", "9007199254740991").refused(t, 422, "invalid_value")
	s.must(200, admit(s, "b", "9007199254740991"))
	s.post("/v1/leases/b/acquire", `{"owner":"w","ttl_ms":1000}`).refused(t, 422, "invalid_value")
	s.must(200, s.post("/v1/fences/b/reset", `{"fencing_token":1,"reason":"a mistake"}`))
	s.must(200, s.post("/v1/leases/b/acquire", `{"owner":"w","ttl_ms":1000}`))
}

// Nor can it have a record refuse every later writer.
func TestWritesLeaveTokensForLaterOnes(t *testing.T) {
	s := startService(t)
	writer := s.as(s.newKey("default", auth.FencingWrite))
	write := func(s *service, mode, token, sequence string) answer {
		return s.put("/v1/protected/a/k", `{"mode":"`+mode+`","fencing_token":`+token+`,"sequence":`+sequence+`,"value":1}`)
	}
	before := s.items()
	for _, token := range []string{"4503599627370497", "9007199254740991"} {
		if a := write(writer, "high_water", token, "9007199254740991"); a.status != 403 || a.field("code") != "forbidden_scope" || a.field("scope") != "leases:force" {
			t.Errorf("token %s: answered %d %s", token, a.status, a.body)
		}
	}
	write(writer, "high_water", "9007199254740992", "1").refused(t, 422, "invalid_value")
	s.unchanged(before)
	s.must(200, write(writer, "high_water", "4503599627370496", "9007199254740991"))
	s.must(200, write(s, "high_water", "9007199254740991", "1"))
}

func TestL4ResetRoute(t *testing.T) {
	s := startService(t)
	reset := func(body string) answer { return s.post("/v1/fences/job/reset", body) }
	reset(`{"fencing_token":5,"reason":"x"}`).refused(t, 404, "not_found")
	reset(`{"fencing_token":5,"key":"k","reason":"x"}`).refused(t, 404, "not_found")
	s.must(200, s.post("/v1/fences/job/admit", `{"fencing_token":9007199254740991,"sequence":3}`))
	reset(`{"fencing_token":5,"reason":"typo"}`).is(t, 200, `{"high_water":5,"sequence":0}`)
	s.get("/v1/fences/job").is(t, 200, `{"high_water":5,"sequence":0}`)
	s.must(200, s.put("/v1/protected/job/k", `{"fencing_token":9007199254740991,"mode":"high_water","value":1}`))
	reset(`{"fencing_token":6,"key":"k","reason":"typo"}`).is(t, 200, `{"high_water":6,"sequence":0}`)
	s.get("/v1/protected/job/k").is(t, 200, `{"fencing_token":6,"mode":"high_water","sequence":0,"value":1,"version":1}`)
	s.must(200, s.post("/v1/leases/job/acquire", `{"owner":"w","ttl_ms":1000}`))
	if a := reset(`{"fencing_token":7,"reason":"x"}`); a.status != 422 || a.field("field") != "fencing_token" {
		t.Errorf("beyond the newest token: %s", a.body)
	}
	if a := s.must(200, s.get("/v1/events")); strings.Count(a.body, `"action":"fence_reset"`) < 2 || !strings.Contains(a.body, `"reason":"typo"`) {
		t.Errorf("who did it, and why, is not recorded: %s", a.body)
	}
}

func TestLeaseDataAndLastMoment(t *testing.T) {
	s := startService(t)
	acquire := func(resource, rest string) answer {
		return s.post("/v1/leases/"+resource+"/acquire", `{"owner":"w","ttl_ms":1000`+rest+`}`)
	}
	const stored = `"acquired_at":"2026-01-02T15:04:05.000Z","data":{"host":"<a>"},"expires_at":"2026-01-02T15:04:06.000Z","fencing_token":1,"held":true,`
	acquire("a", `,"data":{ "host" : "<a>" }`).is(t, 200, `{`+stored+`"lease_id":"lse_…","owner":"w","resource":"a","valid_for_ms":1000}`)
	s.get("/v1/leases/a").is(t, 200, `{`+stored+`"owner":"w","resource":"a"}`)
	if a := acquire("b", `,"data":null`); a.field("data") != "null" {
		t.Errorf("null is a value: %s", a.body)
	}
	before := s.items()
	if a := acquire("c", `,"data":"`+strings.Repeat("x", 4095)+`"`); a.status != 422 || a.field("field") != "data" {
		t.Errorf("4097 bytes: %s", a.body)
	}
	acquire("c", `,"not_after":"2026-01-02T15:04:04.999Z"`).refused(t, 409, "request_expired")
	acquire("c", `,"not_after":"0001-01-01T00:00:00Z"`).refused(t, 409, "request_expired")
	s.unchanged(before)
	s.must(200, acquire("c", `,"not_after":"2026-01-02T15:04:05.000Z","data":"`+strings.Repeat("x", 4094)+`"`))
}

// A caller who waits outlives the time of other requests and the connection's
// deadlines, and learns of a release at once.
func TestWaitingRoute(t *testing.T) {
	for name, tc := range map[string]struct {
		wait    string
		release bool
		status  int
	}{"in vain": {"2500", false, 409}, "until the release": {"60000", true, 200}} {
		t.Run(name, func(t *testing.T) {
			s := hurried(t)
			id := s.must(200, s.post("/v1/leases/job/acquire", `{"owner":"a","ttl_ms":60000}`)).field("lease_id")
			begin, answers := time.Now(), make(chan answer)
			go func() {
				answers <- s.post("/v1/leases/job/acquire", `{"owner":"b","ttl_ms":60000,"wait_ms":`+tc.wait+`}`)
			}()
			time.Sleep(2 * time.Second) // past every deadline of the server
			if tc.release {
				s.must(204, s.post("/v1/leases/job/release", `{"lease_id":"`+id+`","fencing_token":1}`))
			}
			a := <-answers
			if took := time.Since(begin); a.status != tc.status || took < 2*time.Second || took > 20*time.Second {
				t.Errorf("after %v: %d %s", took, a.status, a.body)
			}
		})
	}
}

// L26: a key that is revoked, or expires, while its caller waits gets no lease for it.
func TestL26WaitingWithAKeyThatEnds(t *testing.T) {
	for name, end := range map[string]func(*service, string){
		"revoked": func(s *service, id string) { s.must(204, s.do(request{method: "DELETE", path: "/v1/api-keys/" + id})) },
		"expired": func(s *service, _ string) { s.clock.advance(2 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t)
			made := s.must(201, s.post("/v1/api-keys", `{"name":"k","scopes":["leases:use"],"expires_at":"2026-01-02T16:04:05Z"}`))
			held := s.must(200, s.post("/v1/leases/job/acquire", `{"owner":"a","ttl_ms":86400000}`))
			answers := make(chan answer)
			go func() {
				answers <- s.as(made.field("key")).post("/v1/leases/job/acquire", `{"owner":"b","ttl_ms":60000,"wait_ms":60000}`)
			}()
			time.Sleep(100 * time.Millisecond) // it waits, or will find the key ended
			end(s, made.field("id"))
			s.must(204, s.post("/v1/leases/job/release", `{"lease_id":"`+held.field("lease_id")+`","fencing_token":1}`))
			(<-answers).refused(t, 401, "unauthenticated")
			if a := s.get("/v1/leases/job"); a.field("fencing_token") != "1" || a.field("held") != "false" {
				t.Errorf("it was granted: %s", a.body)
			}
		})
	}
}

// hurried is a service whose requests and connections have less time than the test waits.
func hurried(t *testing.T) *service {
	t.Helper()
	var deps Deps
	s := startService(t, func(d *Deps) { d.Timeout = time.Second; deps = *d })
	server := httptest.NewUnstartedServer(nil)
	server.Config = NewServer(New(deps))
	server.Config.ReadTimeout, server.Config.WriteTimeout = time.Second, 1500*time.Millisecond
	server.Start()
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func TestListLeasesRoute(t *testing.T) {
	s := startService(t)
	for _, r := range []string{"a", "b", "c"} {
		s.must(200, s.post("/v1/leases/"+r+"/acquire", `{"owner":"w 1","ttl_ms":1000}`))
	}
	s.must(200, s.post("/v1/leases/d/acquire", `{"owner":"v","ttl_ms":1000}`))
	const times = `"acquired_at":"2026-01-02T15:04:05.000Z","expires_at":"2026-01-02T15:04:06.000Z","fencing_token":1,"held":true,`
	s.get("/v1/leases?owner=v").is(t, 200, `{"leases":[{`+times+`"owner":"v","resource":"d"}]}`)
	s.get("/v1/leases?owner=nobody").is(t, 200, `{"leases":[]}`)
	s.as(s.newKey("other", auth.LeasesRead)).get("/v1/leases?owner=v").is(t, 200, `{"leases":[]}`)
	first := s.must(200, s.get("/v1/leases?owner=w%201&limit=2"))
	second := s.must(200, s.get("/v1/leases?owner=w%201&limit=2&cursor="+first.field("next_cursor")))
	if strings.Count(first.body, `"resource"`) != 2 || strings.Count(second.body, `"resource"`) != 1 || second.field("next_cursor") != "" {
		t.Errorf("two pages: %s %s", first.body, second.body)
	}
	cursor := "&cursor=" + first.field("next_cursor")
	s.as(s.newKey("other", auth.LeasesRead)).get("/v1/leases?owner=w%201"+cursor).refused(t, 422, "invalid_value")
	for _, query := range []string{"", "?owner=", "?owner=..", "?owner=w&limit=0", "?owner=w&limit=101", "?owner=w&cursor=..", "?owner=w&cursor=b", "?owner=v" + cursor, "?owner=w%201" + cursor + "A"} {
		s.get("/v1/leases"+query).refused(t, 422, "invalid_value")
	}
	s.get("/v1/leases?owner=w&owner=v").refused(t, 400, "invalid_request")
}

func TestLeaseSetRoutes(t *testing.T) {
	s := startService(t)
	const post = "/v1/leases/"
	a := s.post(post+"acquire-set", `{"resources":["b","a"],"owner":"w","ttl_ms":30000,"request_id":"q"}`)
	ids := regexp.MustCompile(`"lease_id":"(lse_\w+)"`).FindAllStringSubmatch(a.body, -1)
	if a.status != 200 || len(ids) != 2 || strings.Index(a.body, `"resource":"b"`) > strings.Index(a.body, `"resource":"a"`) {
		t.Fatalf("acquired: %d %s", a.status, a.body)
	}
	if again := s.post(post+"acquire-set", `{"resources":["b","a"],"owner":"w","ttl_ms":30000,"request_id":"q"}`); again.body != a.body {
		t.Errorf("repeated: %s", again.body)
	}
	before := s.items()
	for _, others := range []string{`["a"]`, `["a","c"]`, `["c","b","a"]`} {
		s.post(post+"acquire-set", `{"resources":`+others+`,"owner":"w","ttl_ms":30000,"request_id":"q"}`).refused(t, 422, "idempotency_mismatch")
	}
	s.post(post+"acquire-set", `{"resources":["c","a"],"owner":"v","ttl_ms":30000}`).refused(t, 409, "lease_held")
	body := func(first, second string) string {
		return `{"leases":[{"resource":"b","lease_id":"` + first + `","fencing_token":1},{"resource":"a","lease_id":"` + second + `","fencing_token":1}]`
	}
	s.post(post+"renew-set", body(ids[0][1], "lse_x")+`,"ttl_ms":60000}`).refused(t, 409, "lease_lost")
	s.post(post+"release-set", body(ids[0][1], "lse_x")+`}`).refused(t, 409, "lease_lost")
	s.post(post+"release-set", body("..", "lse_x")+`}`).refused(t, 422, "invalid_value")
	hundredOne := `{"resources":["r0"` + strings.Repeat(`,"x"`, 100) + `],"owner":"w","ttl_ms":30000}`
	s.post(post+"acquire-set", hundredOne).refused(t, 422, "invalid_value")
	s.unchanged(before)
	if a := s.must(200, s.post(post+"renew-set", body(ids[0][1], ids[1][1])+`,"ttl_ms":60000}`)); strings.Count(a.body, `"valid_for_ms":60000`) != 2 {
		t.Errorf("renewed: %s", a.body)
	}
	s.post(post+"release-set", body(ids[0][1], ids[1][1])+`}`).is(t, 204, ``)
	s.get("/v1/leases/acquire-set").refused(t, 404, "not_found") // a resource may be called so
	s.must(200, s.post("/v1/leases/acquire-set/acquire", `{"owner":"w","ttl_ms":1000}`))
	s.must(200, s.get("/v1/leases/acquire-set"))
}
