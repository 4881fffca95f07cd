package httpapi

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/internal/auth"
)

// noStore is the value of a header field that is the same in every answer.
var noStore = []string{"no-store"}

const requestIDHeader = "X-Request-Id"

// saneID is what a caller may name a request: it ends up in logs and headers.
var saneID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// edge is around everything: it names the request, turns errors and panics into
// answers and reports them.
func (s *server) edge(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := s.Now()
		id := c.Request().Header.Get(requestIDHeader)
		if id == "" || !saneID.MatchString(id) {
			id = newRequestID()
		}
		header := c.Response().Header()
		header[requestIDHeader], header["Cache-Control"] = []string{id}, noStore
		traced := func(int) {}
		if s.Trace != nil {
			traced = s.traceRequest(c)
		}
		if err := s.recovered(next, c); err != nil {
			s.fail(err, c)
		}
		traced(s.report(c, s.Now().Sub(start)))
		return nil
	}
}

// newRequestID is one that no other request has. It could be guessed, and opens nothing.
func newRequestID() string {
	var id [16]byte
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64()) //nolint:gosec // see above
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64()) //nolint:gosec // see above
	return string(idText.AppendEncode(append(make([]byte, 0, 32), "req_"...), id[:]))
}

var idText = base32.StdEncoding.WithPadding(base32.NoPadding)

// panicError is a defect that a handler panicked with.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func (s *server) recovered(next echo.HandlerFunc, c echo.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return next(c)
}

// report counts the answer and, at debug level, logs it: neither the path nor
// the headers, which hold ids and secrets. It returns the status as it counts.
func (s *server) report(c echo.Context, took time.Duration) (status int) {
	path, method := pattern(c), c.Request().Method
	status = c.Response().Status
	if hungUp(c) {
		status = statusHungUp
	}
	s.Observe(path, method, status, took)
	if ctx := c.Request().Context(); s.Log.Enabled(ctx, slog.LevelDebug) {
		key := requestOf(ctx).caller
		s.Log.DebugContext(ctx, "request", s.named(ctx, c, "route", path, "method", method, "status", status, "took", took, "tenant", key.Tenant, "key", key.ID)...)
	}
	return status
}

// pattern is the route's, without what a caller chose.
func pattern(c echo.Context) string {
	if path := c.Path(); path != "" && !strings.HasSuffix(path, "/*") {
		return path
	}
	return "unmatched"
}

// statusHungUp is counted where the caller did not wait for the answer: that is no failure of a store.
const statusHungUp = 499

func hungUp(c echo.Context) bool {
	return errors.Is(requestOf(c.Request().Context()).Outer().Err(), context.Canceled)
}

func requestID(c echo.Context) string { return c.Response().Header().Get(requestIDHeader) }

// authenticate finds the caller's key, before anything else is told: also
// whether a route exists.
func (s *server) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Path() == contract && c.Request().Method == http.MethodGet {
			return next(c)
		}
		key, err := s.caller(c.Request().Context(), c)
		if err != nil {
			return err
		}
		requestOf(c.Request().Context()).caller = key
		return next(c)
	}
}

// caller finds the key that came with the request.
func (s *server) caller(ctx context.Context, c echo.Context) (auth.Key, error) {
	secret, ok := bearer(c.Request().Header.Values(echo.HeaderAuthorization))
	if !ok {
		return auth.Key{}, auth.ErrUnauthenticated
	}
	ctx, ended := s.step(ctx, c, "auth authenticate")
	key, err := s.Auth.Authenticate(ctx, secret)
	ended(err)
	if err != nil {
		return auth.Key{}, fmt.Errorf("authenticate: %w", err)
	}
	return key, nil
}

// bearer takes the secret out of the one Authorization header.
func bearer(headers []string) (string, bool) {
	if len(headers) != 1 {
		return "", false
	}
	scheme, secret, found := strings.Cut(headers[0], " ")
	secret = strings.TrimLeft(secret, " ")
	return secret, found && strings.EqualFold(scheme, "Bearer") && secret != ""
}
