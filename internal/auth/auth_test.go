package auth_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

const operatorText = "csk_written-by-an_operator"

// A clock stands until it is moved.
type clock struct{ now time.Time }

func (c *clock) read() time.Time         { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

func newClock() *clock { return &clock{now: time.Date(2026, 11, 29, 12, 0, 0, 123_456_789, time.UTC)} }

func memory() auth.Store { return auth.NewLocal(kv.NewMemory(kv.MemoryOptions{})) }

// node is a manager on the store: two on one store are two nodes.
func node(store auth.Store, c *clock) *auth.Manager {
	return auth.New(store, auth.Options{Now: c.read})
}

func mustCreate(t *testing.T, m *auth.Manager, tenant string, req auth.NewKey) (string, auth.Key) {
	t.Helper()
	secret, key, err := m.Create(t.Context(), tenant, nil, req)
	if err != nil {
		t.Fatal(err)
	}
	return secret.Reveal(), key
}

func reader() auth.NewKey {
	return auth.NewKey{Name: "n", Scopes: []auth.Scope{auth.LeasesRead}}
}

func expectAuth(t *testing.T, m *auth.Manager, text string, want error, why string) auth.Key {
	t.Helper()
	key, err := m.Authenticate(t.Context(), text)
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", why, err, want)
	}
	if err != nil && !reflect.DeepEqual(key, auth.Key{}) {
		t.Errorf("%s: got a key beside the error: %+v", why, key)
	}
	return key
}

func ExampleManager() {
	ctx := context.Background()
	keys := auth.New(auth.NewLocal(kv.NewMemory(kv.MemoryOptions{})), auth.Options{})

	secret, key, _ := keys.Create(ctx, "acme", nil, auth.NewKey{Name: "worker", Scopes: []auth.Scope{auth.LeasesUse}})
	fmt.Println(secret, len(secret.Reveal()))

	caller, err := keys.Authenticate(ctx, secret.Reveal())
	fmt.Println(caller.Tenant, caller.Name, caller.Allows(auth.LeasesUse), caller.Allows(auth.KeysAdmin), err)

	_ = keys.Revoke(ctx, "acme", key.ID)
	_, err = keys.Authenticate(ctx, secret.Reveal())
	fmt.Println(err)
	// Output:
	// [redacted] 47
	// acme worker true false <nil>
	// auth: no such key
}

func TestCreate(t *testing.T) {
	c := newClock()
	m := node(memory(), c)
	text, key := mustCreate(t, m, "acme", auth.NewKey{
		Name: "worker", Scopes: []auth.Scope{auth.LeasesUse, auth.FencingRead},
		ExpiresAt: c.now.Add(time.Minute).In(time.FixedZone("east", 3600)),
	})
	want := auth.Key{
		ID: key.ID, Tenant: "acme", Name: "worker", Scopes: []auth.Scope{auth.FencingRead, auth.LeasesUse},
		CreatedAt: time.Date(2026, 11, 29, 12, 0, 0, 123e6, time.UTC),
		ExpiresAt: time.Date(2026, 11, 29, 12, 1, 0, 123e6, time.UTC),
	}
	if !reflect.DeepEqual(key, want) {
		t.Errorf("created %+v\nwant %+v", key, want)
	}
	if ok, _ := regexp.MatchString(`^key_[0-9a-f]{32}$`, key.ID); !ok {
		t.Errorf("id %q", key.ID)
	}
	if got := expectAuth(t, m, text, nil, "its text"); !reflect.DeepEqual(got, want) {
		t.Errorf("authenticated %+v\nwant %+v", got, want)
	}
	if got, err := m.List(t.Context(), "acme"); err != nil || !reflect.DeepEqual(got, []auth.Key{want}) {
		t.Errorf("listed %+v, %v", got, err)
	}
}

func TestCreateRefusesValues(t *testing.T) {
	c := newClock()
	m := node(memory(), c)
	good := auth.NewKey{Name: "n", Scopes: []auth.Scope{auth.LeasesRead}}
	scopes := func(s ...auth.Scope) auth.NewKey { return auth.NewKey{Name: "n", Scopes: s} }
	expiring := func(d time.Duration) auth.NewKey {
		return auth.NewKey{Name: "n", Scopes: good.Scopes, ExpiresAt: c.now.Add(d)}
	}
	cases := []struct {
		why    string
		tenant string
		req    auth.NewKey
		field  string // "" = allowed
	}{
		{"plain", "a", good, ""},
		{"no tenant", "", good, "tenant"},
		{"no name", "a", auth.NewKey{Scopes: good.Scopes}, "name"},
		{"a name of 256 bytes", "a", auth.NewKey{Name: strings.Repeat("n", 256), Scopes: good.Scopes}, ""},
		{"a name of 257 bytes", "a", auth.NewKey{Name: strings.Repeat("n", 257), Scopes: good.Scopes}, "name"},
		{"a control character", "a", auth.NewKey{Name: "a\nb", Scopes: good.Scopes}, "name"},
		{"no scope", "a", scopes(), "scopes"},
		{"all scopes", "a", scopes(auth.AllScopes()...), ""},
		{"an unknown scope", "a", scopes(auth.LeasesRead, "leases:write"), "scopes"},
		{"an empty scope", "a", scopes(""), "scopes"},
		{"the stored mark of every scope", "a", scopes("*"), "scopes"},
		{"a scope twice", "a", scopes(auth.LeasesRead, auth.FencingRead, auth.LeasesRead), "scopes"},
		{"expired", "a", expiring(-time.Second), "expires_at"},
		{"expires now", "a", expiring(0), "expires_at"},
		{"expires within this millisecond", "a", expiring(500 * time.Microsecond), "expires_at"},
		{"expires in a millisecond", "a", expiring(time.Millisecond), ""},
	}
	for _, step := range cases {
		_, _, err := m.Create(t.Context(), step.tenant, nil, step.req)
		expectField(t, err, step.field, step.why)
	}
}

func expectField(t *testing.T, err error, field, why string) {
	t.Helper()
	v, ok := errors.AsType[*keytype.ValueError](err)
	if field == "" && err != nil || field != "" && (!ok || v.Field != field) {
		t.Errorf("%s: got %v, want a ValueError of %q", why, err, field)
	}
}

func TestCreateByAKey(t *testing.T) {
	m := node(memory(), newClock())
	by := &auth.Key{Tenant: "a", Scopes: []auth.Scope{auth.KeysAdmin, auth.LeasesRead}}
	cases := []struct {
		why    string
		tenant string
		scopes []auth.Scope
		want   error
	}{
		{"all that it has", "a", by.Scopes, nil},
		{"less than it has", "a", []auth.Scope{auth.LeasesRead}, nil},
		{"one more than it has", "a", []auth.Scope{auth.LeasesRead, auth.LeasesUse}, auth.ErrScope},
		{"another tenant", "b", []auth.Scope{auth.LeasesRead}, auth.ErrScope},
	}
	for _, step := range cases {
		_, _, err := m.Create(t.Context(), step.tenant, by, auth.NewKey{Name: "n", Scopes: step.scopes})
		if !errors.Is(err, step.want) {
			t.Errorf("%s: got %v, want %v", step.why, err, step.want)
		}
	}
	_, _, err := m.Create(t.Context(), "a", by, auth.NewKey{Name: "n", Scopes: []auth.Scope{"no:such"}})
	expectField(t, err, "scopes", "a scope that nobody has is a wrong value, not a missing right")
	if keys, err := m.List(t.Context(), "b"); err != nil || len(keys) != 0 {
		t.Errorf("tenant b has %v, %v", keys, err)
	}
}

func TestAuthenticateText(t *testing.T) {
	store := &watched{Store: memory()}
	m := node(store, newClock())
	text, _ := mustCreate(t, m, "a", reader())
	tail := strings.TrimPrefix(text, "csk_")
	cases := []struct {
		why, text string
		want      error
		read      bool // the store is asked
	}{
		{"the text", text, nil, true},
		{"one character changed", text[:len(text)-1] + "!", auth.ErrUnauthenticated, false},
		{"one character less", text[:len(text)-1], auth.ErrUnauthenticated, true},
		{"nothing", "", auth.ErrUnauthenticated, false},
		{"no prefix", tail, auth.ErrUnauthenticated, false},
		{"another prefix", "cst_" + tail, auth.ErrUnauthenticated, false},
		{"a line end", text + "\n", auth.ErrUnauthenticated, false},
		{"19 characters", "csk_" + strings.Repeat("a", 19), auth.ErrUnauthenticated, false},
		{"20 characters", "csk_" + strings.Repeat("a", 20), auth.ErrUnauthenticated, true},
		{"200 characters", "csk_" + strings.Repeat("a", 200), auth.ErrUnauthenticated, true},
		{"201 characters", "csk_" + strings.Repeat("a", 201), auth.ErrUnauthenticated, false},
		{"letters outside ASCII", "csk_" + strings.Repeat("ä", 20), auth.ErrUnauthenticated, false},
		{"invalid UTF-8", "csk_" + strings.Repeat("\xff", 20), auth.ErrUnauthenticated, false},
	}
	for _, step := range cases {
		before := store.gets.Load()
		expectAuth(t, m, step.text, step.want, step.why)
		if read := store.gets.Load() > before; read != step.read {
			t.Errorf("%s: the store was asked: %v, want %v", step.why, read, step.read)
		}
	}
}

// An id is half of the hash: the other half must count as well.
func TestAuthenticateComparesTheWholeHash(t *testing.T) {
	store := memory()
	text, key := mustCreate(t, node(memory(), newClock()), "a", reader())
	if _, err := store.Insert(t.Context(), auth.Record{Key: key}); err != nil {
		t.Fatal(err)
	}
	expectAuth(t, node(store, newClock()), text, auth.ErrUnauthenticated, "the id alone fits")
}

func TestAnswersAreTheCallersOwn(t *testing.T) {
	m := node(memory(), newClock())
	text, key := mustCreate(t, m, "a", reader())
	key.Scopes[0] = auth.KeysAdmin
	first := expectAuth(t, m, text, nil, "first")
	first.Scopes[0] = auth.KeysAdmin
	if again := expectAuth(t, m, text, nil, "again"); again.Allows(auth.KeysAdmin) {
		t.Error("a caller gave its key a scope")
	}
	auth.AllScopes()[0] = "x"
	if slices.Contains(auth.AllScopes(), "x") {
		t.Error("a caller made a scope")
	}
}

func TestExpiryIsJudgedPerRequest(t *testing.T) {
	c := newClock()
	store := &watched{Store: memory()}
	m := node(store, c)
	text, _ := mustCreate(t, m, "a", auth.NewKey{Name: "n", Scopes: []auth.Scope{auth.LeasesRead}, ExpiresAt: c.now.Add(10 * time.Second)})
	expectAuth(t, m, text, nil, "at first")
	c.advance(9999 * time.Millisecond)
	expectAuth(t, m, text, nil, "a millisecond before")
	c.advance(time.Millisecond)
	expectAuth(t, m, text, auth.ErrUnauthenticated, "at its expiry")
	if n := store.gets.Load(); n != 1 {
		t.Errorf("the store was read %d times, want once: the answers must come from the cache", n)
	}
	if keys, err := m.List(t.Context(), "a"); err != nil || len(keys) != 1 {
		t.Errorf("an expired key is listed until it is revoked: %v, %v", keys, err)
	}
}

func TestRevoke(t *testing.T) {
	m := node(memory(), newClock())
	text, key := mustCreate(t, m, "a", reader())
	steps := []struct {
		why, tenant, id string
		want            error
		alive           bool
	}{
		{"no such key", "a", "key_0", auth.ErrNotFound, true},
		{"another tenant's", "b", key.ID, auth.ErrNotFound, true},
		{"its tenant's", "a", key.ID, nil, false},
		{"again, after a lost answer", "a", key.ID, nil, false},
		{"another tenant's, ended", "b", key.ID, auth.ErrNotFound, false},
	}
	expectAuth(t, m, text, nil, "at first")
	for _, step := range steps {
		if err := m.Revoke(t.Context(), step.tenant, step.id); !errors.Is(err, step.want) {
			t.Errorf("%s: got %v, want %v", step.why, err, step.want)
		}
		want := auth.ErrUnauthenticated
		if step.alive {
			want = nil
		}
		expectAuth(t, m, text, want, step.why)
	}
	expectField(t, m.Revoke(t.Context(), "a", ".."), "id", "what cannot be an id")
	if keys, err := m.List(t.Context(), "a"); err != nil || len(keys) != 0 {
		t.Errorf("listed %v, %v", keys, err)
	}
}

func TestAdd(t *testing.T) {
	store := memory()
	m := node(store, newClock())
	key, err := m.Add(t.Context(), "default", "bootstrap", operatorText)
	if err != nil || key.Tenant != "default" || key.Name != "bootstrap" || !slices.Equal(key.Scopes, auth.AllScopes()) || !key.RevokedAt.IsZero() {
		t.Fatalf("added %+v, %v", key, err)
	}
	if got := expectAuth(t, m, operatorText, nil, "its text"); !reflect.DeepEqual(got, key) {
		t.Errorf("authenticated %+v, want %+v", got, key)
	}
	again, err := m.Add(t.Context(), "other", "other", operatorText)
	if err != nil || !reflect.DeepEqual(again, key) {
		t.Errorf("again: %+v, %v; want what stands: %+v", again, err, key)
	}
	rec, _, err := store.Get(t.Context(), key.ID)
	if err != nil || !slices.Equal(rec.Scopes, []auth.Scope{"*"}) {
		t.Errorf("stored scopes %v, %v: a later version's scopes would be missing", rec.Scopes, err)
	}
}

// S19 of another kind: nothing that a restart does may bring a revoked key back.
func TestAddNeverRevives(t *testing.T) {
	store, c := memory(), newClock()
	m := node(store, c)
	key, err := m.Add(t.Context(), "default", "first key", operatorText)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Revoke(t.Context(), "default", key.ID); err != nil {
		t.Fatal(err)
	}
	restarted := node(store, c)
	again, err := restarted.Add(t.Context(), "default", "first key", operatorText)
	if err != nil || again.RevokedAt.IsZero() {
		t.Errorf("added again: %+v, %v; want it as it stands, revoked", again, err)
	}
	expectAuth(t, restarted, operatorText, auth.ErrUnauthenticated, "after the restart")
}

// Two texts with one id would have half a hash in common: the second must not
// be told that it stands.
func TestAddMeetsAnotherText(t *testing.T) {
	store := memory()
	m := node(store, newClock())
	key, err := node(memory(), newClock()).Add(t.Context(), "a", "n", operatorText)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Insert(t.Context(), auth.Record{Key: key, Hash: [32]byte{1}}); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Add(t.Context(), "a", "n", operatorText); err == nil {
		t.Errorf("added %+v", got)
	}
}

func TestAddRefusesValues(t *testing.T) {
	m := node(memory(), newClock())
	for why, text := range map[string]string{
		"empty": "", "no prefix": strings.Repeat("a", 47), "too short": "csk_short", "a line end": operatorText + "\n",
	} {
		_, err := m.Add(t.Context(), "default", "n", text)
		expectField(t, err, "key", why)
		if text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error shows the text: %v", why, err)
		}
	}
	_, err := m.Add(t.Context(), "", "n", operatorText)
	expectField(t, err, "tenant", "no tenant")
	_, err = m.Add(t.Context(), "default", "", operatorText)
	expectField(t, err, "name", "no name")
}

func TestListRefusesATenant(t *testing.T) {
	_, err := node(memory(), newClock()).List(t.Context(), "")
	expectField(t, err, "tenant", "no tenant")
}

func TestScopes(t *testing.T) {
	want := []auth.Scope{
		"audit:read", "fencing:read", "fencing:write", "idempotency:use", "keys:admin", "leases:force", "leases:read", "leases:use", "locks:use", "quotas:admin", "quotas:use", "ratelimit:admin", "ratelimit:check",
		"sessions:create", "sessions:data", "sessions:explain", "sessions:read", "sessions:revoke", "sessions:verify",
		"users:disable", "users:permissions", "users:revoke",
	}
	if got := auth.AllScopes(); !slices.Equal(got, want) {
		t.Errorf("scopes are %v\nwant %v", got, want)
	}
}

// Or a key that lives for an hour could make one that lives for ever.
func TestAKeyMakesNoneThatOutlivesIt(t *testing.T) {
	c := newClock()
	m := node(memory(), c)
	by := &auth.Key{Tenant: "acme", Scopes: auth.AllScopes(), ExpiresAt: c.now.Add(time.Hour)}
	for why, at := range map[string]time.Time{"never": {}, "later": by.ExpiresAt.Add(time.Millisecond)} {
		_, _, err := m.Create(t.Context(), "acme", by, auth.NewKey{Name: "n", Scopes: []auth.Scope{auth.LeasesRead}, ExpiresAt: at})
		expectField(t, err, "expires_at", why)
	}
	if _, _, err := m.Create(t.Context(), "acme", by, auth.NewKey{Name: "n", Scopes: []auth.Scope{auth.LeasesRead}, ExpiresAt: by.ExpiresAt}); err != nil {
		t.Errorf("as long as itself: %v", err)
	}
}
