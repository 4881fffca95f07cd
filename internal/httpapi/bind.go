package httpapi

import (
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/keytype"
)

// maxBody is the longest body, in bytes.
const maxBody = 64 << 10

// bind reads the body into a struct generated from the contract.
func bind(c echo.Context, into any) error {
	body, err := readBody(c)
	if err != nil {
		return err
	}
	return decode(body, into)
}

// bindOptional is bind for a body that may be left away: all its fields are optional.
func bindOptional(c echo.Context, into any) error {
	body, err := readBody(c)
	if err != nil || len(body) == 0 {
		return err
	}
	return decode(body, into)
}

func decode(body []byte, into any) error {
	err := api.Decode(body, into)
	wrong, ok := errors.AsType[*api.DecodeError](err)
	switch {
	case !ok:
		return err
	case wrong.Value:
		return &keytype.ValueError{Field: wrong.Field, Reason: wrong.Reason}
	default:
		return malformed(wrong.Field, wrong.Reason)
	}
}

// readBody reads at most maxBody bytes of JSON, whatever the length that was announced.
func readBody(c echo.Context) ([]byte, error) {
	r := c.Request()
	if r.ContentLength > maxBody {
		c.Response().Header().Set(echo.HeaderConnection, "close") // or the server waits for the rest
		return nil, &http.MaxBytesError{Limit: maxBody}
	}
	body, err := readAll(c.Response().Writer, r)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, err
	}
	if err != nil {
		return nil, malformed("", "the body could not be read")
	}
	if len(body) > 0 {
		err = checkMediaType(r.Header)
	}
	return body, err
}

// readAll reads as much as was announced, or at most maxBody.
func readAll(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength <= 0 {
		// The server's own writer: it closes the connection when the limit is reached.
		return io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return nil, err
	}
	return body, r.Body.Close() // or the server looks for what nobody has read
}

func checkMediaType(h http.Header) error {
	if types := h[echo.HeaderContentType]; len(types) == 1 && types[0] == echo.MIMEApplicationJSON && h.Get(echo.HeaderContentEncoding) == "" {
		return nil // as nearly all are
	}
	mediaType, params, err := mime.ParseMediaType(h.Get(echo.HeaderContentType))
	charset, named := params["charset"]
	switch {
	case err != nil || mediaType != echo.MIMEApplicationJSON || len(h.Values(echo.HeaderContentType)) != 1:
		return &refusal{code: api.CodeUnsupportedMediaType, detail: "the Content-Type of the body must be application/json"}
	case named && !strings.EqualFold(charset, "utf-8"):
		return &refusal{code: api.CodeUnsupportedMediaType, detail: "the charset of the body must be utf-8"}
	case h.Get(echo.HeaderContentEncoding) != "":
		return &refusal{code: api.CodeUnsupportedMediaType, detail: "the body must come without a Content-Encoding"}
	}
	return nil
}

// checkQuery refuses parameters that the route does not take, or takes once.
func checkQuery(raw string, known []string) error {
	if raw == "" {
		return nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return malformed("", "the query is malformed")
	}
	for name, v := range values {
		if !slices.Contains(known, name) {
			return malformed("", "the route does not take this query parameter")
		}
		if len(v) != 1 {
			return malformed(name, "appears twice in the query")
		}
	}
	return nil
}

// queryInt reads an optional integer of the query; 0 where it is absent.
func queryInt(c echo.Context, name string) (int64, error) {
	if !c.QueryParams().Has(name) {
		return 0, nil
	}
	n, err := strconv.ParseInt(c.QueryParam(name), 10, 64)
	if err != nil {
		return 0, malformed(name, "must be an integer of 64 bits")
	}
	return number(&n), nil
}

// number is an optional integer as the managers take it: 0 where it is absent.
// The fields that use it have no allowed 0, so one that was sent becomes −1,
// which the manager refuses by its own range.
func number(p *int64) int64 {
	switch {
	case p == nil:
		return 0
	case *p == 0:
		return -1
	default:
		return *p
	}
}

// millis is a duration of n ms, at the end of the range where n is beyond it:
// a manager then refuses it by its own range instead of a wrapped value.
func millis(n int64) time.Duration {
	const limit = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(max(-limit, min(limit, n))) * time.Millisecond
}

// text is an optional string of a request, with its name in the contract.
type text struct {
	field string
	value *string
}

// notEmpty refuses texts that were sent and are empty: to the managers that is an absent one.
func notEmpty(texts ...text) error {
	for _, t := range texts {
		if t.value != nil && *t.value == "" {
			return &keytype.ValueError{Field: t.field, Reason: "must not be empty"}
		}
	}
	return nil
}

// checkGiven is keytype.CheckRange for a number that may be absent.
func checkGiven(field string, p *int64, low, high int64) error {
	if p == nil {
		return nil
	}
	return keytype.CheckRange(field, *p, low, high)
}

// orZero is the value, or the zero one where it is absent.
func orZero[T any](p *T) T {
	if p == nil {
		return *new(T)
	}
	return *p
}

// instant is an optional instant of a request, zero where it is absent.
func instant(i *api.Instant) time.Time {
	if i == nil {
		return time.Time{}
	}
	if i.IsZero() {
		return time.Unix(0, 0) // as long past
	}
	return i.Time
}

// checkOptional is keytype.CheckID for a text that may be absent.
func checkOptional(t text) error {
	if t.value == nil {
		return nil
	}
	return keytype.CheckID(t.field, *t.value)
}
