package httpapi

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/seal"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

// under sends the request with an Idempotency-Key.
func (s *service) under(name, path, body string) answer {
	s.t.Helper()
	return s.do(request{method: "POST", path: path, body: body, header: map[string]string{"Idempotency-Key": name}})
}

// sessionsOf counts the user's sessions.
func (s *service) sessionsOf(user string) int {
	s.t.Helper()
	return strings.Count(s.must(200, s.get("/v1/users/"+user+"/sessions")).body, `"handle"`)
}

const ann = `{"user_id":"ann"}`

// Every route that takes the header answers a repetition as it answered at first, and
// does nothing else for it.
func TestRepetitionsOnEveryRoute(t *testing.T) {
	s := startService(t)
	repeated := 0
	for i, r := range samples(s) {
		if !takesKey(r.request()) {
			continue
		}
		repeated++
		name := fmt.Sprint("key-", i)
		first := s.under(name, r.path, r.body)
		if first.status >= 300 {
			t.Fatalf("%s: answered %d %s", r.path, first.status, first.body)
		}
		before := s.items()
		again := s.under(name, r.path, r.body)
		if again.status != first.status || again.body != first.body {
			t.Errorf("%s: answered %d %s, then %d %s", r.path, first.status, first.body, again.status, again.body)
		}
		for _, header := range []string{"Date", "X-Request-Id"} { // of the request, not of what it does
			first.header.Del(header)
			again.header.Del(header)
		}
		if !maps.EqualFunc(first.header, again.header, func(a, b []string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
			t.Errorf("%s: answered the headers %v, then %v", r.path, first.header, again.header)
		}
		s.unchanged(before)
	}
	if repeated < 15 {
		t.Errorf("only %d routes were repeated", repeated)
	}
}

// A stored answer holds the secret that the first one showed. The store does not.
func TestStoredAnswersAreSealed(t *testing.T) {
	s := startService(t)
	token := s.must(201, s.under("a", "/v1/sessions", ann)).field("token")
	key := s.must(201, s.under("b", "/v1/api-keys", `{"name":"n","scopes":["leases:read"]}`)).field("key")
	if !strings.HasPrefix(token, "cst_") || !strings.HasPrefix(key, "csk_") {
		t.Fatalf("token %q, key %q", token, key)
	}
	for at, value := range s.items() {
		for _, secret := range []string{token, key} {
			if _, random, _ := strings.Cut(secret, "_"); strings.Contains(value, random) {
				t.Errorf("%s holds %s", at, secret)
			}
		}
	}
}

// Without the key that sealed it an answer cannot be given again, nor is the request
// carried out again.
func TestSealKeyIsGone(t *testing.T) {
	var sealer *seal.Sealer
	s := startService(t, func(d *Deps) { d.Sealer = sealerFunc(func() *seal.Sealer { return sealer }) })
	for _, b := range []byte{1, 2} {
		raw := make([]byte, seal.KeySize)
		raw[0] = b
		var err error
		if sealer, err = seal.New([][]byte{raw}); err != nil {
			t.Fatal(err)
		}
		if b == 1 {
			s.must(201, s.under("a", "/v1/sessions", ann))
		}
	}
	a := s.under("a", "/v1/sessions", ann)
	a.refused(t, 503, "store_unavailable")
	if a.field("retryable") != "true" || a.header.Get("Retry-After") != "1" { // another node may have the key
		t.Errorf("it is not said that a repetition may help: %v %s", a.header, a.body)
	}
	if n := s.sessionsOf("ann"); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

type sealerFunc func() *seal.Sealer

func (f sealerFunc) Seal(purpose, tenant string, plaintext []byte) string {
	return f().Seal(purpose, tenant, plaintext)
}

func (f sealerFunc) Open(purpose, tenant, sealed string) ([]byte, error) {
	return f().Open(purpose, tenant, sealed)
}

// L48: what is another request under the same key is told so, also while the first is in flight.
func TestL48AnotherRequestUnderTheKey(t *testing.T) {
	s, store := startFailing(t)
	s.must(201, s.under("done", "/v1/sessions", ann))
	store.fail(keytype.ErrOutcomeUnknown)
	s.under("flying", "/v1/sessions", ann).refused(t, 503, "outcome_unknown")
	store.with.Store(nil)
	s.under("flying", "/v1/sessions", ann).refused(t, 409, "idempotency_in_flight")
	const every = "/v1/sessions"

	peer := s.as(s.newKey("default", "sessions:create", "users:permissions"))
	for _, name := range []string{"done", "flying"} {
		s.under(name, every, `{"user_id":"bob"}`).refused(t, 422, "idempotency_mismatch")
		s.under(name, every, ann+" ").refused(t, 422, "idempotency_mismatch")
		s.under(name, "/v1/users/ann/permission-epoch", ann).refused(t, 422, "idempotency_mismatch")
		peer.under(name, every, ann).refused(t, 422, "idempotency_mismatch")
	}
	s.must(200, s.under("epoch", "/v1/users/ann/permission-epoch", ``))
	s.under("epoch", "/v1/users/bob/permission-epoch", ``).refused(t, 422, "idempotency_mismatch")
	s.must(201, s.as(s.newKey("other", "sessions:create")).under("done", every, ann))
	s.must(200, s.under("switch", "/v1/users/ann/disable", `{"reason":"x"}`))
	s.under("switch", "/v1/users/ann/enable", `{"reason":"x"}`).refused(t, 422, "idempotency_mismatch")
	s.must(200, s.post("/v1/idempotency/done/claim", `{"fingerprint":"f","lock_ttl_ms":1000,"ttl_ms":1000}`))
}

// A refusal has had no effect: it is decided anew, at once.
func TestRefusalsAreNotStored(t *testing.T) {
	s := startService(t)
	const ask = `{"user_id":"ann","expected_session_version":2}`
	s.under("k", "/v1/sessions", ask).refused(t, 412, "epoch_mismatch")
	s.must(200, s.post("/v1/users/ann/logout-all", ``))
	s.must(201, s.under("k", "/v1/sessions", ask))
	s.under("k2", "/v1/sessions", `{`).refused(t, 400, "invalid_request")
	s.under("k2", "/v1/sessions", `{`).refused(t, 400, "invalid_request")
	if a := s.under("k2", "/v1/sessions", ann); a.field("code") != "idempotency_mismatch" || !strings.Contains(a.body, "a corrected request needs a new key") {
		t.Errorf("a corrected request under the same key: %d %s", a.status, a.body)
	}
	s.must(201, s.under("k3", "/v1/sessions", ann))
}

// L46: a fault, which may have had an effect, leaves the key locked, not for ever.
func TestL46FaultsAreDecidedByTheLock(t *testing.T) {
	s, store := startFailing(t)
	store.fail(keytype.ErrUnavailable)
	s.under("k", "/v1/sessions", ann).refused(t, 503, "store_unavailable")
	store.with.Store(nil)
	a := s.under("k", "/v1/sessions", ann)
	a.refused(t, 409, "idempotency_in_flight")
	if a.field("retry_after_ms") != "10001" || a.header.Get("Retry-After") != "11" {
		t.Errorf("in flight: %v %s", a.header, a.body)
	}
	s.clock.advance(10001 * time.Millisecond)
	s.must(201, s.under("k", "/v1/sessions", ann))
}

// A hooked store has something happen around its nth change.
type hooked struct {
	kv.Store
	mu     sync.Mutex // guards change
	change int
	at     map[int]func() error  // an error is the change's own
	after  func(context.Context) // of every change
}

func (h *hooked) Update(ctx context.Context, fn func(kv.Tx) error) error {
	h.mu.Lock()
	h.change++
	hook := h.at[h.change]
	h.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return err
		}
	}
	err := h.Store.Update(ctx, fn)
	if h.after != nil {
		h.after(ctx)
	}
	return err
}

func receiptsOn(store kv.Store, s **service) func(*Deps) {
	return func(d *Deps) {
		d.Receipts = idempotency.New(idempotency.NewLocal(store), idempotency.Options{Now: func() time.Time { return (*s).clock.now() }})
	}
}

// L47: a node that dies between the effect and the receipt has executed the request,
// and nobody knows. The repetition waits for the lock, not for ever; then there is a second
// execution, and one stored answer.
func TestL47CrashBetweenEffectAndReceipt(t *testing.T) {
	var s *service
	store := &hooked{Store: kv.NewMemory(kv.MemoryOptions{}), at: map[int]func() error{2: func() error { return keytype.ErrUnavailable }}}
	s = startService(t, receiptsOn(store, &s))
	lost := s.must(201, s.under("k", "/v1/sessions", ann)).field("token")
	s.under("k", "/v1/sessions", ann).refused(t, 409, "idempotency_in_flight")
	s.clock.advance(10001 * time.Millisecond)
	kept := s.must(201, s.under("k", "/v1/sessions", ann)).field("token")
	if again := s.must(201, s.under("k", "/v1/sessions", ann)).field("token"); again != kept || again == lost {
		t.Errorf("tokens %s, %s, then %s", lost, kept, again)
	}
	if n := s.sessionsOf("ann"); n != 2 {
		t.Errorf("%d sessions, want the one of each execution", n)
	}
}

// An executor that takes longer than its lock is superseded. Its answer is not the one that counts.
func TestSupersededExecutor(t *testing.T) {
	var s *service
	var inner string
	sessions := &hooked{Store: kv.NewMemory(kv.MemoryOptions{})}
	sessions.at = map[int]func() error{1: func() error {
		s.clock.advance(10001 * time.Millisecond)
		inner = s.must(201, s.under("k", "/v1/sessions", ann)).field("token")
		return nil
	}}
	s = startService(t, func(d *Deps) {
		d.Sessions = session.New(session.NewLocal(sessions), session.Options{RouteKey: make([]byte, 32), Now: d.Now})
	})
	s.under("k", "/v1/sessions", ann).refused(t, 503, "outcome_unknown")
	if got := s.must(201, s.under("k", "/v1/sessions", ann)).field("token"); got != inner || inner == "" {
		t.Errorf("answered the token %s, want %s", got, inner)
	}
}

// The answer is stored although the request's time is over, or its caller gone.
func TestStoredAfterTheDeadline(t *testing.T) {
	t.Parallel()
	sessions := &hooked{Store: kv.NewMemory(kv.MemoryOptions{}), after: func(ctx context.Context) { <-ctx.Done() }}
	s := startService(t, func(d *Deps) {
		d.Timeout = time.Second
		d.Sessions = session.New(session.NewLocal(sessions), session.Options{RouteKey: make([]byte, 32), Now: d.Now})
	})
	first := s.must(201, s.under("k", "/v1/sessions", ann))
	if again := s.must(201, s.under("k", "/v1/sessions", ann)); again.body != first.body {
		t.Errorf("answered %s, then %s", first.body, again.body)
	}
}

// Of requests at the same moment one is carried out.
func TestRepetitionsAtOnce(t *testing.T) {
	s := startService(t)
	var mu sync.Mutex
	tokens, refused := map[string]bool{}, 0
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			a := s.under("k", "/v1/sessions", ann)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case a.status == 201:
				tokens[a.field("token")] = true
			case a.field("code") == "idempotency_in_flight":
				refused++
			default:
				t.Errorf("answered %d %s", a.status, a.body)
			}
		})
	}
	group.Wait()
	if n := s.sessionsOf("ann"); n != 1 || len(tokens) != 1 {
		t.Errorf("%d sessions, %d tokens, %d refused", n, len(tokens), refused)
	}
}

// An answer that says what is held now is not given again: the holder may have lost it.
// The routes refuse the header, and have done nothing.
func TestNoStoredAnswerSaysWhatIsHeld(t *testing.T) {
	s := startService(t)
	for _, r := range samples(s) {
		if r.method != "POST" || takesKey(r.request()) {
			continue
		}
		before := s.items()
		s.under("k", r.path, r.body).refused(t, 400, "invalid_request")
		s.unchanged(before)
	}
	g := s.must(200, s.post("/v1/leases/r/acquire", `{"owner":"a","ttl_ms":1000}`))
	renew := `{"lease_id":"` + g.field("lease_id") + `","fencing_token":1,"ttl_ms":1000}`
	s.must(200, s.post("/v1/leases/r/renew", renew))
	s.clock.advance(2 * time.Second)
	s.must(200, s.post("/v1/leases/r/acquire", `{"owner":"b","ttl_ms":1000}`))
	s.post("/v1/leases/r/renew", renew).refused(t, 409, "lease_lost")
}

// A panic under a key is answered like any other, and its lock decides.
func TestPanicUnderAKey(t *testing.T) {
	sessions := &hooked{Store: kv.NewMemory(kv.MemoryOptions{}), at: map[int]func() error{1: func() error { panic("a nil map") }}}
	s := startService(t, func(d *Deps) {
		d.Sessions = session.New(session.NewLocal(sessions), session.Options{RouteKey: make([]byte, 32), Now: d.Now})
	})
	s.under("k", "/v1/sessions", ann).refused(t, 500, "internal")
	s.under("k", "/v1/sessions", ann).refused(t, 409, "idempotency_in_flight")
}

func TestKeyTwice(t *testing.T) {
	s := startService(t)
	const message = "POST /v1/users/ann/permission-epoch HTTP/1.1\r\n{auth}\r\nIdempotency-Key: a\r\nIdempotency-Key: a\r\nContent-Length: 0\r\n\r\n"
	s.raw(message).refused(t, 400, "invalid_request")
	s.raw(strings.ReplaceAll(message, ": a", ":")).refused(t, 400, "invalid_request")
	s.raw(strings.Replace(message, "Idempotency-Key: a\r\nIdempotency-Key: a", "Idempotency-Key:", 1)).refused(t, 422, "invalid_value")
}

func TestHeaderOfAMissingFeature(t *testing.T) {
	s := startService(t, func(d *Deps) { d.Receipts = nil })
	s.under("k", "/v1/sessions", ann).refused(t, 503, "feature_unavailable")
	if n := s.sessionsOf("ann"); n != 0 {
		t.Errorf("%d sessions", n)
	}
}

// A record is forgotten a day later: the key is free for any request.
func TestReceiptsEnd(t *testing.T) {
	s := startService(t)
	s.must(201, s.under("k", "/v1/sessions", ann))
	s.clock.advance(24 * time.Hour)
	s.must(201, s.under("k", "/v1/sessions", ann))
	s.clock.advance(time.Millisecond)
	s.must(201, s.under("k", "/v1/sessions", `{"user_id":"bob"}`))
}
