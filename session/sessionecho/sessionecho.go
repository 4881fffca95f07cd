// Package sessionecho decides nothing: it puts a [sessionhttp.Guard] in front of
// echo handlers. The package sessionhttp says what the guard does, and what else
// has to stand against cross-site request forgery.
package sessionecho

import (
	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessionhttp"
)

// Middleware lets requests with a good session through. The others are answered by
// the guard and its options; echo's error handler does not see them.
func Middleware(guard *sessionhttp.Guard) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r, ok := guard.Check(c.Response(), c.Request())
			if !ok {
				return nil
			}
			c.SetRequest(r)
			return next(c)
		}
	}
}

// FromContext is [sessionhttp.FromContext] of the request.
func FromContext(c echo.Context) (session.Verdict, bool) {
	return sessionhttp.FromContext(c.Request().Context())
}
