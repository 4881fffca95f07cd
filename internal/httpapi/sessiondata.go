package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/auth"
)

func (s *server) getSessionData(c echo.Context, key auth.Key) error {
	data, err := s.Sessions.Data(c.Request().Context(), key.Tenant, c.Param("handle"))
	if err != nil {
		return err
	}
	if data.Version == 0 {
		data.Value = []byte("null")
	}
	c.Response().Header().Set("ETag", etag(data.Version))
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, data.Value)
}

func (s *server) putSessionData(c echo.Context, key auth.Key) error {
	data, err := bindAny(c)
	if err != nil {
		return err
	}
	version, err := ifMatch(c.Request().Header)
	if err != nil {
		return err
	}
	version, err = s.Sessions.SetData(c.Request().Context(), key.Tenant, c.Param("handle"), version, data)
	if err != nil {
		return err
	}
	c.Response().Header().Set("ETag", etag(version))
	return noContent(c)
}

// bindAny reads a body that is any JSON, as strictly as a value within another body.
func bindAny(c echo.Context) (json.RawMessage, error) {
	body, err := readBody(c)
	if err != nil {
		return nil, err
	}
	if !json.Valid(body) { // or a body could close the object that it is put into
		return nil, malformed("", "the body is not one JSON value")
	}
	var wrapped struct {
		Data json.RawMessage `json:"data"`
	}
	return wrapped.Data, decode([]byte(`{"data":`+string(body)+`}`), &wrapped)
}

func etag(version int64) string { return strconv.Quote(strconv.FormatInt(version, 10)) }

// ifMatch is the version that the request replaces.
func ifMatch(h http.Header) (int64, error) {
	given := h.Values("If-Match")
	if len(given) == 0 {
		return 0, &refusal{code: api.CodePreconditionRequired, detail: `send If-Match with the ETag of the last read, "0" where nothing was written yet`}
	}
	version, err := strconv.ParseInt(strings.Trim(given[0], `"`), 10, 64)
	if err != nil || len(given) > 1 || etag(version) != given[0] {
		return 0, malformed("", "If-Match must be one ETag that this route answered with")
	}
	return version, nil
}
