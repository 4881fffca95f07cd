package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// raw sends exactly these bytes, {auth} being the key's header, and reads one answer.
func (s *service) raw(message string) answer {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	message = strings.ReplaceAll(message, "{auth}", "Host: x\r\nAuthorization: Bearer "+s.key)
	if _, err := io.WriteString(conn, message); err != nil {
		s.t.Fatal(err)
	}
	method, _, _ := strings.Cut(message, " ")
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		s.t.Fatalf("%.30q … %.100q: %v", message, message[max(0, len(message)-50):], err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// L36: whatever an id contains, it comes back as it was sent, and no two meet.
func TestL36IdsGoThroughThePathOnce(t *testing.T) {
	s := startService(t)
	for _, c := range []struct{ path, id string }{
		{"a%2Fb", `a/b`},
		{"a%252Fb", `a%2Fb`},
		{"a%25252Fb", `a%252Fb`},
		{"%2F", `/`},
		{"%252F", `%2F`},
		{"%25", `%`},
		{"a+b", `a+b`},
		{"a%2Bb%20c", `a+b c`},
		{"a%20b", `a b`},
		{"%61%62%63", `abc`},
		{"caf%C3%A9", `café`},
		{"café-raw", `café-raw`},
		{"cafe%CC%81", "cafe\u0301"},
		{"%F0%9F%98%80", `😀`},
		{"a%3Fb%23c", `a?b#c`},
		{`a"b<c>`, `a"b<c>`},
		{`a"%2F`, `a"/`},
		{`a\b`, `a\b`},
		{"{resource}", `{resource}`},
		{":resource", `:resource`},
		{"*", `*`},
		{"...", `...`},
		{".hidden", `.hidden`},
		{"%2e%2e%2f", `../`},
		{"a!$&'()*,;=:@~b", `a!$&'()*,;=:@~b`},
		{"acquire", `acquire`},
		{strings.Repeat("%C3%A9", 128), strings.Repeat("é", 128)},
	} {
		owner := c.path[:min(len(c.path), 256)]
		body := fmt.Sprintf(`{"owner":%q,"ttl_ms":60000}`, owner)
		a := s.raw("POST /v1/leases/" + c.path + "/acquire HTTP/1.1\r\n{auth}\r\nContent-Type: application/json\r\nContent-Length: " + fmt.Sprint(len(body)) + "\r\n\r\n" + body)
		if a.status != 200 || decoded(t, a, "resource") != c.id || a.field("fencing_token") != "1" {
			t.Errorf("acquire %q answered %d %s, want the resource %q", c.path, a.status, a.body, c.id)
		}
		a = s.raw("GET /v1/leases/" + c.path + " HTTP/1.1\r\n{auth}\r\n\r\n")
		if a.status != 200 || decoded(t, a, "owner") != owner || decoded(t, a, "resource") != c.id {
			t.Errorf("get %q answered %d %s", c.path, a.status, a.body)
		}
	}
	s.get("/v1/leases/%61%62c").is(t, 200, strings.TrimSpace(s.get("/v1/leases/abc").body))
}

func decoded(t *testing.T, a answer, name string) string {
	t.Helper()
	var text string
	if err := unmarshalString(`"`+a.field(name)+`"`, &text); err != nil {
		t.Errorf("%s of %s: %v", name, a.body, err)
	}
	return text
}

func TestTwoIdsInOnePath(t *testing.T) {
	s := startService(t)
	write := func(path, value string) {
		t.Helper()
		s.must(200, s.put(path, `{"fencing_token":1,"mode":"high_water","value":"`+value+`"}`))
	}
	paths := []string{"/v1/protected/a/b%2Fc", "/v1/protected/a%2Fb/c", "/v1/protected/a%2Fb%2Fc/d", "/v1/protected/a/b", "/v1/protected/b/a"}
	for _, path := range paths {
		write(path, path)
	}
	for _, path := range paths {
		if got := s.must(200, s.get(path)).field("value"); got != path {
			t.Errorf("%s holds what was written to %s", path, got)
		}
	}
	s.get("/v1/protected/a/b/c").refused(t, 404, "not_found")
}

func TestUnknownRoutes(t *testing.T) {
	s := startService(t)
	for _, path := range []string{
		"/", "", "/v1", "/v1/", "/v2/leases/x", "//v1/leases/x", "/v1//leases/x", "/v1/leases/", "/v1/leases/x/", "/v1/leases/x/acquire/", "/v1/leases/x/steal",
		"/v1/leases/a/b", "/v1/leases/a/b/acquire", "/v1/sessions/", "/v1/sessions/a/b", "/v1/sessions/a/", "/v1/sessions/verify/x", "/v1/api-keys/", "/v1/api-keys/a/b",
		"/v1/ratelimit/policies/a/b", "/v1/protected/a", "/v1/protected/a/b/", "/v1/fences/a/admit/x", "/V1/key-types", "/v1/key%2Dtypes/x", "/v1/l%65ases/x", "/metrics", "/healthz", "/openapi.yaml/x", "/openapi.json",
		"/v1/sessions/rotate", "/v1/users", "/v1/events/x", "/v1/quotas/a",
	} {
		for _, method := range []string{"GET", "PATCH"} {
			if method == "PATCH" && path == "/v1/sessions/rotate" {
				continue // the path of a session called rotate
			}
			s.do(request{method: method, path: path}).refused(t, 404, "not_found")
			s.do(request{method: method, path: path, header: map[string]string{"Authorization": ""}}).refused(t, 401, "unauthenticated")
		}
	}
	// Not an unknown route, but a session that does not exist.
	s.get("/v1/sessions/verify").refused(t, 404, "not_found")
	s.post("/v1/leases//acquire", `{}`).refused(t, 422, "invalid_value")
}

func TestOtherMethodsOfAKnownPath(t *testing.T) {
	s := startService(t)
	for _, c := range []struct{ path, allow string }{
		{"/v1/sessions", "OPTIONS, POST"},
		{"/v1/sessions/verify", "OPTIONS, POST"},
		{"/v1/sessions/ses_x", "OPTIONS, DELETE, GET"},
		{"/v1/protected/a/b", "OPTIONS, GET, PUT"},
		{"/v1/leases/a", "OPTIONS, GET"},
		{"/v1/leases/a%2Fb/acquire", "OPTIONS, POST"},
		{"/v1/key-types", "OPTIONS, GET"},
		{"/openapi.yaml", "OPTIONS, GET"},
	} {
		for _, method := range []string{"HEAD", "PATCH", "TRACE", "PROPFIND", "BREW"} {
			a := s.do(request{method: method, path: c.path})
			if a.status != 405 || a.header.Get("Allow") != c.allow {
				t.Errorf("%s %s answered %d with Allow: %s", method, c.path, a.status, a.header.Get("Allow"))
			}
			if method != "HEAD" {
				a.refused(t, 405, "method_not_allowed")
			}
			s.do(request{method: method, path: c.path, header: map[string]string{"Authorization": ""}}).refusedStatus(t, 401)
		}
		if a := s.do(request{method: "OPTIONS", path: c.path}); a.status != 204 || a.header.Get("Allow") != c.allow {
			t.Errorf("OPTIONS %s answered %d with Allow: %s", c.path, a.status, a.header.Get("Allow"))
		}
	}
}

func (a answer) refusedStatus(t *testing.T, status int) {
	t.Helper()
	if a.status != status {
		t.Errorf("answered %d, want %d", a.status, status)
	}
}

// What the standard library's client would not send.
func TestRawMessages(t *testing.T) {
	s := startService(t)
	const chunk = "1000\r\n"
	chunked := "POST /v1/sessions/verify HTTP/1.1\r\n{auth}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, c := range []struct {
		why, message string
		status       int
		code         string // "" where the HTTP server answers by itself
	}{
		{"an absolute target", "GET http://elsewhere/v1/key-types HTTP/1.1\r\n{auth}\r\n\r\n", 200, ""},
		{"an invalid escape", "GET /v1/leases/%zz HTTP/1.1\r\n{auth}\r\n\r\n", 400, ""},
		{"a cut escape", "GET /v1/leases/%2 HTTP/1.1\r\n{auth}\r\n\r\n", 400, ""},
		{"no host", "GET /v1/key-types HTTP/1.1\r\n\r\n", 400, ""},
		{"a control character in the path", "GET /v1/leases/a\x01 HTTP/1.1\r\n{auth}\r\n\r\n", 400, ""},
		{"every server option", "OPTIONS * HTTP/1.1\r\n{auth}\r\n\r\n", 404, "not_found"},
		{"every server option without a key", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 401, "unauthenticated"},
		{"a tunnel", "CONNECT example.com:443 HTTP/1.1\r\n{auth}\r\n\r\n", 404, "not_found"},
		{"two keys", "GET /v1/key-types HTTP/1.1\r\n{auth}\r\nAuthorization: Bearer csk_x\r\n\r\n", 401, "unauthenticated"},
		{"two media types", "POST /v1/sessions/revoke HTTP/1.1\r\n{auth}\r\nContent-Type: application/json\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\n" + `{"token":"x"}`, 415, "unsupported_media_type"},
		{"a folded scheme", "GET /v1/key-types HTTP/1.1\r\nHost: x\r\nauthorization: bearer   " + s.key + "\r\n\r\n", 200, ""},
		{"two lengths", "POST /v1/sessions/revoke HTTP/1.1\r\n{auth}\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, ""},
		{"a garbled chunk", chunked + "zz\r\n", 400, "invalid_request"},
		{"chunks without end", chunked + strings.Repeat(chunk+strings.Repeat(" ", 0x1000)+"\r\n", 17), 413, "body_too_large"},
		{"64 KB and a chunk", chunked + strings.Repeat(chunk+strings.Repeat(" ", 0x1000)+"\r\n", 16) + "1\r\n \r\n0\r\n\r\n", 413, "body_too_large"},
		{"a body announced too long", "POST /v1/sessions/verify HTTP/1.1\r\n{auth}\r\nExpect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: 65537\r\n\r\n", 413, "body_too_large"},
		{"a body announced too long that never comes", "POST /v1/sessions/verify HTTP/1.1\r\n{auth}\r\nContent-Type: application/json\r\nContent-Length: 65537\r\n\r\n{", 413, "body_too_large"},
		{"headers of 64 KB", "GET /v1/key-types HTTP/1.1\r\n{auth}\r\nX-Long: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", 431, ""},
	} {
		a := s.raw(c.message)
		if a.status != c.status || c.code != "" && a.field("code") != c.code {
			t.Errorf("%s: answered %d %.300s, want %d %s", c.why, a.status, a.body, c.status, c.code)
		}
	}
}

// A body of exactly 64 KB is read, whether its length is announced or not.
func TestBodyOfExactly64KB(t *testing.T) {
	s := startService(t)
	body := `{"token":"x"` + strings.Repeat(" ", 64<<10-13) + `}`
	for _, chunked := range []bool{false, true} {
		s.do(request{method: "POST", path: "/v1/sessions/revoke", body: body, chunked: chunked}).is(t, 204, ``)
		s.do(request{method: "POST", path: "/v1/sessions/revoke", body: body + " ", chunked: chunked}).refused(t, 413, "body_too_large")
	}
}

func TestMediaTypesThatAreJSON(t *testing.T) {
	s := startService(t)
	for _, mimeType := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON;charset=\"UTF-8\"", "application/json; v=1"} {
		a := s.do(request{method: "POST", path: "/v1/sessions/revoke", body: `{"token":"x"}`, header: map[string]string{"Content-Type": mimeType}})
		a.is(t, 204, ``)
	}
	s.do(request{method: "DELETE", path: "/v1/sessions/ses_x", body: `{}`}).refused(t, 404, "not_found")
}
