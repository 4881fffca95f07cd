package ratelimitecho_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimitecho"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

func Example() {
	policy := ratelimit.Policy{
		Name: "exports", Posture: ratelimit.FailClosed, Stage: ratelimit.Enforce,
		Limits: []ratelimit.Limit{{
			Name: "network", Key: []string{"network"}, Algorithm: ratelimit.FixedWindow,
			Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 24 * time.Hour}},
		}},
	}
	store := ratelimit.NewLocal(embedded.Memory())
	limits, err := ratelimit.New(store, []ratelimit.Policy{policy}, ratelimit.Options{})
	if err != nil {
		panic(err)
	}
	addresses := ratelimithttp.NewAddresses(ratelimithttp.AddressOptions{})
	guard := ratelimithttp.New(limits, "exports", func(r *http.Request) (ratelimithttp.Subject, error) {
		network, err := addresses.Network(r)
		return ratelimithttp.Subject{Tenant: "acme", Descriptors: map[string]string{"network": network.String()}}, err
	}, ratelimithttp.Options{})

	e := echo.New()
	e.POST("/exports", func(c echo.Context) error {
		d, _ := ratelimitecho.FromContext(c)
		return c.String(http.StatusAccepted, fmt.Sprintf("%d left for today", d.Limits[0].Remaining))
	}, ratelimitecho.Middleware(guard))

	for range 2 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/exports", nil))
		fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"), w.Header().Get("Content-Type"))
	}
	// Output:
	// 202 "network";q=1;w=86400 text/plain; charset=UTF-8
	// 429 "network";q=1;w=86400 application/problem+json
}
