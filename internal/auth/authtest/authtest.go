// Package authtest decides whether a store of API keys keeps the contract of auth.Store.
package authtest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
)

// lag is how long a list may lag behind.
const lag = 10 * time.Second

var epoch = time.Date(2026, 11, 29, 12, 0, 0, 123e6, time.UTC)

// Run runs the suite. Each call of open returns an empty store.
func Run(t *testing.T, open func(t *testing.T) auth.Store) {
	for name, test := range map[string]func(*testing.T, auth.Store){
		"absent":               absent,
		"what is stored comes": roundTrip,
		"a taken id":           takenID,
		"revoke":               revoke,
		"revoked is for ever":  tombstone,
		"list":                 list,
		"race for one id":      insertRace,
		"race of revocations":  revokeRace,
		"ended context":        endedContext,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// Record makes a record of a random text, with every field but RevokedAt set.
func Record(tenant, name string, scopes ...auth.Scope) auth.Record {
	hash := sha256.Sum256([]byte(rand.Text()))
	return auth.Record{
		Key: auth.Key{
			ID: "key_" + hex.EncodeToString(hash[:16]), Tenant: tenant, Name: name, Scopes: scopes,
			CreatedAt: epoch, ExpiresAt: epoch.Add(time.Hour),
		},
		Hash: hash,
	}
}

// ExpectHidden fails where the raw bytes of a store hold a text, plain or in
// base64 or hex, and where they do not hold the id: then they are not the store's.
func ExpectHidden(t *testing.T, raw []byte, id string, texts ...string) {
	t.Helper()
	if !bytes.Contains(raw, []byte(id)) {
		t.Errorf("the id %s is not in the %d bytes", id, len(raw))
	}
	for _, text := range texts {
		secret := []byte(strings.TrimPrefix(text, "csk_"))
		// Without the last digits, which depend on what follows.
		coded := base64.StdEncoding.EncodeToString([]byte(text))[:len(text)]
		for _, form := range [][]byte{secret, []byte(coded), []byte(hex.EncodeToString(secret)), bytes.ToUpper([]byte(hex.EncodeToString(secret)))} {
			if bytes.Contains(raw, form) {
				t.Errorf("a key's text is stored, as %.12s…", form)
			}
		}
	}
}

// ExpectRefused fails where a store takes what stands under the record's id, in
// a format that it does not know, for anything but an error.
func ExpectRefused(t *testing.T, s auth.Store, rec auth.Record) {
	t.Helper()
	if got, found, err := s.Get(t.Context(), rec.ID); err == nil {
		t.Errorf("get: %+v, %v", got, found)
	}
	if got, err := s.Insert(t.Context(), rec); err == nil {
		t.Errorf("insert: %+v", got)
	}
	if found, err := s.Revoke(t.Context(), rec.Tenant, rec.ID, epoch); err == nil {
		t.Errorf("revoke: %v", found)
	}
	if got, err := s.List(t.Context(), rec.Tenant); err == nil {
		t.Errorf("list: %+v", got)
	}
}

func absent(t *testing.T, s auth.Store) {
	if rec, found, err := s.Get(t.Context(), "key_0"); err != nil || found || !reflect.DeepEqual(rec, auth.Record{}) {
		t.Errorf("get: %v, %v, %v; want nothing", rec, found, err)
	}
	if found, err := s.Revoke(t.Context(), "a", "key_0", epoch); err != nil || found {
		t.Errorf("revoke: %v, %v; want false", found, err)
	}
	if _, found, err := s.Get(t.Context(), "key_0"); err != nil || found {
		t.Errorf("get after revoke: %v, %v; want nothing", found, err)
	}
	if recs, err := s.List(t.Context(), "a"); err != nil || len(recs) != 0 {
		t.Errorf("list: %v, %v; want nothing", recs, err)
	}
}

func roundTrip(t *testing.T, s auth.Store) {
	lasting := Record("a", "never expires", auth.LeasesUse)
	lasting.ExpiresAt = time.Time{}
	odd := Record("  tenant:1|ü\u200b🦊", `"name" / 日本`, auth.AllScopes()...)
	odd.Hash = [32]byte{} // zero bytes are bytes
	foreign := Record("a", "of another version", "*", "later:scope")
	revoked := Record("a", "revoked before", auth.LeasesRead)
	revoked.RevokedAt = epoch.Add(time.Minute)
	for _, want := range []auth.Record{Record("a", "b", auth.KeysAdmin, auth.LeasesRead), lasting, odd, foreign, revoked} {
		mustInsert(t, s, want)
		expect(t, s, want, "after insert")
	}
}

func takenID(t *testing.T, s auth.Store) {
	first := Record("a", "first", auth.LeasesRead)
	mustInsert(t, s, first)
	second := Record("b", "second", auth.KeysAdmin)
	second.ID = first.ID
	for _, rec := range []auth.Record{second, first} {
		stands, err := s.Insert(t.Context(), rec)
		if err != nil || !reflect.DeepEqual(stands, first) {
			t.Errorf("insert over it: %+v, %v; want the first: %+v", stands, err, first)
		}
	}
	expect(t, s, first, "after inserts over it")
	expectList(t, s, "b")
	expectList(t, s, "a", first)
}

func revoke(t *testing.T, s auth.Store) {
	rec, other := Record("a", "one", auth.LeasesRead), Record("a", "other", auth.LeasesRead)
	mustInsert(t, s, rec)
	mustInsert(t, s, other)
	ended := rec
	ended.RevokedAt = epoch.Add(time.Second)
	steps := []struct {
		why    string
		tenant string
		at     time.Time
		found  bool
		want   auth.Record
	}{
		{"another tenant has no such key", "b", epoch.Add(1), false, rec},
		{"a tenant is compared byte for byte", "A", epoch.Add(1), false, rec},
		{"its own tenant ends it", "a", ended.RevokedAt, true, ended},
		{"again is the same, and the first instant stays", "a", epoch.Add(time.Hour), true, ended},
		{"another tenant has no such key, still", "b", epoch.Add(time.Hour), false, ended},
	}
	for _, step := range steps {
		found, err := s.Revoke(t.Context(), step.tenant, rec.ID, step.at)
		if err != nil || found != step.found {
			t.Errorf("%s: %v, %v; want %v", step.why, found, err, step.found)
		}
		expect(t, s, step.want, step.why)
	}
	expect(t, s, other, "another key is untouched")
}

func tombstone(t *testing.T, s auth.Store) {
	rec := Record("a", "one", auth.LeasesRead)
	mustInsert(t, s, rec)
	if found, err := s.Revoke(t.Context(), "a", rec.ID, epoch); err != nil || !found {
		t.Fatalf("revoke: %v, %v", found, err)
	}
	stands, err := s.Insert(t.Context(), rec)
	if err != nil || !stands.RevokedAt.Equal(epoch) {
		t.Errorf("insert of a revoked key: %+v, %v; want the revoked one", stands, err)
	}
	rec.RevokedAt = epoch
	expect(t, s, rec, "after the insert")
	expectList(t, s, "a")
}

func list(t *testing.T, s auth.Store) {
	var want []auth.Record
	for i := range 25 {
		rec := Record("a", fmt.Sprint(i), auth.LeasesRead)
		mustInsert(t, s, rec)
		// Tenants whose names begin or end alike, or look like a stored key.
		mustInsert(t, s, Record("aa", "b", auth.LeasesRead))
		mustInsert(t, s, Record("1:a", "c", auth.LeasesRead))
		if i%3 == 0 {
			if found, err := s.Revoke(t.Context(), "a", rec.ID, epoch); err != nil || !found {
				t.Fatalf("revoke: %v, %v", found, err)
			}
			continue
		}
		want = append(want, rec)
	}
	expectList(t, s, "a", want...)
}

func insertRace(t *testing.T, s auth.Store) {
	for range 10 {
		id := Record("a", "", auth.LeasesRead).ID
		stands := make([]auth.Record, 16)
		var wg sync.WaitGroup
		for i := range stands {
			wg.Go(func() {
				rec := Record("a", fmt.Sprint(i), auth.LeasesRead)
				rec.ID = id
				var err error
				if stands[i], err = s.Insert(t.Context(), rec); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, rec := range stands {
			expect(t, s, rec, "what an insert returned")
		}
	}
}

func revokeRace(t *testing.T, s auth.Store) {
	for range 10 {
		rec := Record("a", "one", auth.LeasesRead)
		mustInsert(t, s, rec)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				found, err := s.Revoke(t.Context(), "a", rec.ID, epoch.Add(time.Duration(i)*time.Second))
				if err != nil || !found {
					t.Errorf("revoke: %v, %v", found, err)
				}
				got, _, err := s.Get(t.Context(), rec.ID)
				if err != nil || got.RevokedAt.IsZero() {
					t.Errorf("get after revoke returned: %+v, %v; want it revoked", got, err)
				}
			})
		}
		wg.Wait()
	}
}

func endedContext(t *testing.T, s auth.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rec := Record("a", "one", auth.LeasesRead)
	if _, err := s.Insert(ctx, rec); err == nil {
		t.Error("insert went through")
	}
	if _, found, err := s.Get(t.Context(), rec.ID); err != nil || found {
		t.Errorf("get: %v, %v; want nothing", found, err)
	}
}

func mustInsert(t *testing.T, s auth.Store, rec auth.Record) {
	t.Helper()
	stands, err := s.Insert(t.Context(), rec)
	if err != nil || !reflect.DeepEqual(stands, rec) {
		t.Fatalf("insert: %+v, %v; want %+v", stands, err, rec)
	}
}

func expect(t *testing.T, s auth.Store, want auth.Record, why string) {
	t.Helper()
	got, found, err := s.Get(t.Context(), want.ID)
	if err != nil || !found || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: get: %+v, %v, %v; want %+v", why, got, found, err, want)
	}
}

// expectList waits until the list is as wanted: it may lag.
func expectList(t *testing.T, s auth.Store, tenant string, want ...auth.Record) {
	t.Helper()
	slices.SortFunc(want, func(a, b auth.Record) int { return cmp.Compare(a.ID, b.ID) })
	var got []auth.Record
	for begun := time.Now(); time.Since(begun) < lag; time.Sleep(lag / 100) {
		var err error
		if got, err = s.List(t.Context(), tenant); err != nil {
			t.Fatalf("list %q: %v", tenant, err)
		}
		if len(got) == 0 && len(want) == 0 || reflect.DeepEqual(got, want) {
			return
		}
	}
	t.Errorf("list %q:\n%+v\nwant\n%+v", tenant, got, want)
}
