package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
)

const mimeProblem = "application/problem+json"

// write answers with JSON.
func write(c echo.Context, status int, body any) error {
	return writeAs(c, status, echo.MIMEApplicationJSON, body)
}

func writeAs(c echo.Context, status int, mimeType string, body any) error {
	raw, err := encode(body)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	return writeRaw(c, status, mimeType, raw)
}

// contentTypes are the values of the header field, which answers share.
var contentTypes = map[string][]string{echo.MIMEApplicationJSON: {echo.MIMEApplicationJSON}, mimeProblem: {mimeProblem}}

func writeRaw(c echo.Context, status int, mimeType string, body []byte) error {
	c.Response().Header()[echo.HeaderContentType] = contentTypes[mimeType]
	return c.Blob(status, mimeType, body)
}

// encode keeps <, > and & as they are: a protected value comes back as it was written.
func encode(body any) ([]byte, error) {
	var buffer bytes.Buffer
	enc := json.NewEncoder(&buffer)
	enc.SetEscapeHTML(false)
	err := enc.Encode(body)
	return buffer.Bytes(), err
}

// noContent answers that it is done.
func noContent(c echo.Context) error { return c.NoContent(http.StatusNoContent) }

// ceilMillis is the duration in ms, rounded up: after so long it is over.
func ceilMillis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// ceilSeconds is the duration in s, rounded up.
func ceilSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

// retryAfter is the header's value: a client that comes back then is not too early.
func retryAfter(d time.Duration) string {
	return strconv.FormatInt(max(1, ceilSeconds(d)), 10)
}

// optionalInstant leaves the zero time away.
func optionalInstant(t time.Time) *api.Instant {
	if t.IsZero() {
		return nil
	}
	i := api.At(t)
	return &i
}

// list converts strings for JSON, never to null.
func list[To, From ~string](from []From) []To {
	to := make([]To, 0, len(from))
	for _, s := range from {
		to = append(to, To(s))
	}
	return to
}

// each converts a list for JSON, never to null.
func each[To, From any](from []From, convert func(From) To) []To {
	to := make([]To, 0, len(from))
	for _, item := range from {
		to = append(to, convert(item))
	}
	return to
}
