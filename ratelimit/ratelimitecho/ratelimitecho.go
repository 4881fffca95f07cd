// Package ratelimitecho decides nothing: it puts a [ratelimithttp.Guard] in front of
// echo handlers. The package ratelimithttp says what the guard does, whose request it
// counts, and where middleware is the wrong place.
package ratelimitecho

import (
	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/ratelimithttp"
)

// Middleware lets requests through that the policy allows. The others are answered by
// the guard and its options; echo's error handler does not see them. An identity must
// not come from echo's RealIP, which by default believes any client.
func Middleware(guard *ratelimithttp.Guard) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r, done, ok := guard.Check(c.Response(), c.Request())
			if !ok {
				return nil
			}
			defer done()
			c.SetRequest(r)
			return next(c)
		}
	}
}

// FromContext is [ratelimithttp.FromContext] of the request.
func FromContext(c echo.Context) (ratelimit.Decision, bool) {
	return ratelimithttp.FromContext(c.Request().Context())
}
