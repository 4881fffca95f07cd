package client

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/api"
)

// What another service, or a proxy, answers is no success, whatever its status.
func TestForeignAnswersAreNoVerdicts(t *testing.T) {
	for name, first := range map[string]line{
		"a page":              {status: 200, body: "<html>welcome</html>"},
		"an empty object":     {status: 200, body: "{}"},
		"null":                {status: 200, body: "null"},
		"a list":              {status: 200, body: "[]"},
		"another object":      {status: 200, body: `{"status":"ok"}`},
		"a problem of no one": {status: 404, body: `{"code":"not_found","status":404}`},
		"half a body":         {status: 200, body: `{"active":tr`},
		"a huge body":         {status: 200, body: `{"active":true,"x":"` + strings.Repeat("x", maxBody) + `"}`},
	} {
		synctest.Test(t, func(t *testing.T) { // where a call's time allows for one try
			c, err := New("http://service", Options{APIKey: "k", Timeout: time.Millisecond, HTTP: &http.Client{Transport: &script{lines: []line{first}}}})
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			_, verified := c.VerifySession(ctx, api.VerifySession{Token: "t"})
			_, revoked := c.RevokeSession(ctx, "t")
			_, granted := c.AcquireLease(ctx, "r", api.AcquireLease{})
			for what, err := range map[string]error{"verify": verified, "revoke": revoked, "acquire": granted} {
				if e, ok := errors.AsType[*NoAnswerError](err); !ok || !e.Sent {
					t.Errorf("%s: %s: %v", name, what, err)
				}
			}
		})
	}
}

// Nor does anything of it get into the answer to the next try.
func TestNothingIsReadOfAForeignAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{lines: []line{{status: 200, body: `{"reason":"foreign","source":"foreign"}`}, {status: 200, body: `{"active":true}`}}}
		v, err := scripted(t, s).VerifySession(t.Context(), api.VerifySession{Token: "t"})
		if err != nil || !v.Active || v.Reason != nil || v.Source != nil || len(s.at) != 2 {
			t.Errorf("%+v, %v after %d requests", v, err, len(s.at))
		}
	})
}

// A token goes to the service and nowhere else, also through a caller's own http.Client.
func TestNoRedirectIsFollowed(t *testing.T) {
	var taken atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		taken.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer other.Close()
	redirect := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer redirect.Close()
	for name, own := range map[string]*http.Client{"none": nil, "the caller's": {}} {
		c, err := New(redirect.URL, Options{APIKey: "k", HTTP: own, Timeout: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.RevokeSession(t.Context(), "t"); err == nil || taken.Load() > 0 {
			t.Errorf("%s: %v, %d requests elsewhere", name, err, taken.Load())
		}
		if own != nil && own.CheckRedirect != nil {
			t.Error("the caller's client was changed")
		}
	}
}

// Ids are percent-encoded once, whatever stands in them, behind any base URL; and what is
// no text is not sent, since it would become another's.
func TestIdsArriveAsTheyAre(t *testing.T) {
	r := service(t)
	behind, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.StripPrefix("/base/path", httputil.NewSingleHostReverseProxy(behind)))
	defer proxy.Close()
	ids := []string{"a/b", "/", "a//b", "100%", "a%2Fb", "%25", "a b+c?d#e;f=g", `a\b`, "…", "\u00fc\u2603", "~'\"<>"}
	for base, ids := range map[string][]string{r.url: ids, proxy.URL + "/base/path": ids, r.url + "/": ids[:1], r.url + "//": ids[:1], proxy.URL + "/base/path/": ids[:1]} {
		c, err := New(base, Options{APIKey: r.key})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			name := "ids " + id
			if _, err := c.SetQuota(t.Context(), name, id, api.SetQuota{Limit: 5, Window: json.RawMessage(`"none"`)}); err != nil {
				t.Errorf("%s: %q: %v", base, id, err)
			}
			w, err := c.WriteProtected(t.Context(), name, id, api.WriteProtected{FencingToken: 1, Mode: new(api.HighWater), Value: json.RawMessage(`1`)})
			rec, readErr := c.ReadProtected(t.Context(), name, id)
			if err != nil || readErr != nil || rec.Version != w.Version {
				t.Errorf("%s: %q: %+v, %v, %v", base, id, rec, err, readErr)
			}
			if _, err := c.Lease(t.Context(), id); !IsCode(err, api.CodeNotFound) {
				t.Errorf("%s: %q: %v", base, id, err)
			}
		}
		if _, err := c.CreateSession(t.Context(), api.CreateSession{UserID: "ada\xff"}); err == nil {
			t.Error("text that is no text was sent")
		}
	}
}
