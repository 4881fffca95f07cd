package ratelimithttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

// newLimits allows two searches at once, and one more every ten seconds.
func newLimits() *ratelimit.Limiter {
	policy := ratelimit.Policy{
		Name: "search", Posture: ratelimit.FailOpen, Stage: ratelimit.Enforce,
		Limits: []ratelimit.Limit{{
			Name: "client", Key: []string{"client"}, Algorithm: ratelimit.TokenBucket,
			Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 10 * time.Second}, Burst: 2},
		}},
	}
	store := ratelimit.NewLocal(embedded.Memory())                     // or redislimit.New: one count for all nodes
	stopped := func() time.Time { return time.Unix(1_767_366_245, 0) } // so that the output is always the same
	limits, err := ratelimit.New(store, []ratelimit.Policy{policy}, ratelimit.Options{Now: stopped})
	if err != nil {
		panic(err)
	}
	return limits
}

func Example() {
	client := ratelimithttp.NewWaterfall(
		ratelimithttp.NewAddresses(ratelimithttp.AddressOptions{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}),
		ratelimithttp.NewHasher([]byte("32 bytes, the same on every node")),
		ratelimithttp.WaterfallOptions{},
	)
	guard := ratelimithttp.New(newLimits(), "search", func(r *http.Request) (ratelimithttp.Subject, error) {
		id, err := client.Identify(r)
		return ratelimithttp.Subject{Tenant: "acme", Descriptors: map[string]string{"client": id}}, err
	}, ratelimithttp.Options{})
	site := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "found")
	}))

	for i := range 4 {
		r := httptest.NewRequest(http.MethodGet, "/search", nil)
		r.RemoteAddr = "10.0.0.1:4711" // our proxy, which appends the client's address
		r.Header.Set("X-Forwarded-For", fmt.Sprintf("198.51.100.%d, 192.0.2.7", i))
		w := httptest.NewRecorder()
		site.ServeHTTP(w, r)
		fmt.Printf("%d, %s, retry after %q\n", w.Code, w.Header().Get("RateLimit"), w.Header().Get("Retry-After"))
	}
	// Output:
	// 200, "client";r=1;t=10, retry after ""
	// 200, "client";r=0;t=20, retry after ""
	// 429, "client";r=0;t=10, retry after "10"
	// 429, "client";r=0;t=10, retry after "10"
}

func ExampleAddresses_Client() {
	addresses := ratelimithttp.NewAddresses(ratelimithttp.AddressOptions{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	r.Header.Set("X-Forwarded-For", "127.0.0.1, 10.9.9.9, 2001:db8:1:2::7") // the first two are the client's own words
	client, _ := addresses.Client(r)
	network, _ := addresses.Network(r)
	fmt.Println(client, network)

	r.RemoteAddr = "203.0.113.5:4711" // somebody who is no proxy of ours
	client, _ = addresses.Client(r)
	fmt.Println(client)
	// Output:
	// 2001:db8:1:2::7 2001:db8:1:2::/64
	// 203.0.113.5
}

func ExampleHasher_Sum() {
	hash := ratelimithttp.NewHasher([]byte("32 bytes, the same on every node"))
	fmt.Println(hash.Sum("mail", "ann@example.com"), len(hash.Sum("a prompt of any length")))
	// Output:
	// H5QJZQbvt8qhtPDI_y1Sqg 22
}

func ExampleSkip() {
	guard := ratelimithttp.New(newLimits(), "search", func(r *http.Request) (ratelimithttp.Subject, error) {
		return ratelimithttp.Subject{Tenant: "acme", Descriptors: map[string]string{"client": r.RemoteAddr}}, nil
	}, ratelimithttp.Options{})
	limited := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	probes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" { // it tells and changes nothing, so that anybody may
			r = r.WithContext(ratelimithttp.Skip(r.Context()))
		}
		limited.ServeHTTP(w, r)
	})
	for range 3 {
		w := httptest.NewRecorder()
		probes.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		fmt.Println(w.Code, w.Header().Get("RateLimit") == "")
	}
	// Output:
	// 204 true
	// 204 true
	// 204 true
}
