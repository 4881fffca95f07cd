package sessionhttp

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/coordsvc/coordsvc/session"
)

// A Kind says what is wrong with the session of a request.
type Kind uint8

// The kinds of refusals.
const (
	Missing   Kind = iota + 1 // the request has no token
	Ambiguous                 // it has different tokens, and none was looked at
	Dead                      // its token is of no session, or of one that has ended
	StepUp                    // its session is good, but MinAAL or MaxAuthAge demand more
)

// A Refusal says why a request has no good session. It is the handler of the
// default answer, for a NoSession that answers only some requests otherwise.
type Refusal struct {
	Kind Kind
	// Reason is why, where a token was looked at. It is not for the client, who may
	// have found the token; session.Rotated says that somebody uses an old one.
	Reason session.Reason

	from   Source
	bearer bool // the token came in a header
	demand session.VerifyRequest
}

func kindOf(shown presented, reason session.Reason) Kind {
	switch {
	case shown.conflict:
		return Ambiguous
	case !shown.usable():
		return Missing
	case reason == session.AAL || reason == session.AuthAge:
		return StepUp
	}
	return Dead
}

// A problem is an answer as in RFC 9457.
type problem struct {
	Type         string `json:"type"`
	Title        string `json:"title"`
	Status       int    `json:"status"`
	Detail       string `json:"detail"`
	Code         string `json:"code"`
	Retryable    bool   `json:"retryable"`
	MinAAL       int    `json:"min_aal,omitempty"`
	MaxAuthAgeMS int64  `json:"max_auth_age_ms,omitempty"`

	bearerError string // in the challenge, where a bearer token is refused
}

// The answers. All that is Dead looks alike, so that nobody learns of a token that
// they found whose it was, or what ended it.
var (
	noSession = problem{
		Status: http.StatusUnauthorized, Code: "unauthenticated", Title: "a session is needed",
		Detail: "log in and repeat the request", bearerError: "invalid_token",
	}
	ambiguous = problem{
		Status: http.StatusBadRequest, Code: "invalid_request", Title: "the request has different session tokens",
		Detail: "send one, in the cookie or in the header Authorization", bearerError: "invalid_request",
	}
	stepUp = problem{
		Status: http.StatusUnauthorized, Code: "insufficient_user_authentication", Title: "a stronger or more recent login is needed",
		Detail: "authenticate again and repeat the request", bearerError: "insufficient_user_authentication",
	}
	unavailable = problem{
		Status: http.StatusServiceUnavailable, Code: "store_unavailable", Title: "the session could not be looked at",
		Detail: "try again later", Retryable: true,
	}
)

// ServeHTTP answers with problem+json: 401, or 400 where the request is ambiguous.
// Where the guard takes bearer headers a challenge goes with it, as in RFC 6750
// and, for a step-up, RFC 9470; for cookies HTTP knows none.
func (why Refusal) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p := why.problem()
	if why.from&Bearer != 0 {
		w.Header().Set("WWW-Authenticate", why.challenge(p.bearerError))
	}
	p.write(w)
}

func (why Refusal) problem() problem {
	switch why.Kind {
	case Ambiguous:
		return ambiguous
	case StepUp:
		p := stepUp
		p.MinAAL, p.MaxAuthAgeMS = why.demand.MinAAL, why.demand.MaxAuthAge.Milliseconds()
		return p
	case Missing, Dead:
	}
	return noSession
}

// challenge names an error only to a client that used the scheme.
func (why Refusal) challenge(bearerError string) string {
	switch {
	case !why.bearer:
		return "Bearer"
	case why.Kind == StepUp && why.demand.MaxAuthAge > 0:
		return fmt.Sprintf(`Bearer error=%q, max_age="%d"`, bearerError, int64(why.demand.MaxAuthAge.Seconds()))
	}
	return fmt.Sprintf("Bearer error=%q", bearerError)
}

// Unavailable is the default answer to a fault: 503 with Retry-After, whatever the
// error, of which it tells nothing.
func Unavailable(w http.ResponseWriter, _ *http.Request, _ error) {
	w.Header().Set("Retry-After", "1")
	unavailable.write(w)
}

func (p problem) write(w http.ResponseWriter) {
	p.Type = "urn:coordsvc:problem:" + p.Code
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // a struct of strings and numbers
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // fails where the client is gone
}
