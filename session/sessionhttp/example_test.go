package sessionhttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessionhttp"
)

func newSessions() *session.Manager {
	store := session.NewLocal(embedded.Memory())
	return session.New(store, session.Options{RouteKey: []byte("32 bytes, fixed for all the data")})
}

func Example() {
	sessions := newSessions()
	guard := sessionhttp.New(sessions, sessionhttp.FixedTenant("acme"), sessionhttp.Options{})

	mux := http.NewServeMux()
	mux.HandleFunc("POST /login", func(w http.ResponseWriter, r *http.Request) {
		// … the password was right
		token, s, err := sessions.Create(r.Context(), "acme", session.CreateRequest{UserID: "ann"})
		if err != nil {
			sessionhttp.Unavailable(w, r, err)
			return
		}
		guard.SetCookie(w, token, s)
	})
	mux.Handle("GET /me", guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, _ := sessionhttp.FromContext(r.Context())
		_, _ = fmt.Fprintf(w, "hello %s", v.Session.UserID)
	})))
	site := http.NewCrossOriginProtection().Handler(mux)

	me := httptest.NewRequest(http.MethodGet, "/me", nil)
	refused := httptest.NewRecorder()
	site.ServeHTTP(refused, me)
	fmt.Println(refused.Code, refused.Header().Get("WWW-Authenticate"))
	fmt.Println(refused.Body)

	login := httptest.NewRecorder()
	site.ServeHTTP(login, httptest.NewRequest(http.MethodPost, "/login", nil))
	cookie := login.Result().Cookies()[0]
	fmt.Println(cookie.Name, "for", cookie.MaxAge, "s")

	me.AddCookie(cookie)
	welcome := httptest.NewRecorder()
	site.ServeHTTP(welcome, me)
	fmt.Println(welcome.Code, welcome.Body)
	// Output:
	// 401 Bearer
	// {"type":"urn:coordsvc:problem:unauthenticated","title":"a session is needed","status":401,"detail":"log in and repeat the request","code":"unauthenticated","retryable":false}
	// __Host-session for 43200 s
	// 200 hello ann
}

// People are sent to log in, and programs told that they have to.
func ExampleOptions_noSession() {
	guard := sessionhttp.New(newSessions(), sessionhttp.FixedTenant("acme"), sessionhttp.Options{
		NoSession: func(w http.ResponseWriter, r *http.Request, why sessionhttp.Refusal) {
			switch {
			case r.Header.Get("Sec-Fetch-Mode") != "navigate":
				why.ServeHTTP(w, r)
			case why.Kind == sessionhttp.StepUp:
				http.Redirect(w, r, "/step-up", http.StatusSeeOther)
			default:
				http.Redirect(w, r, "/login", http.StatusSeeOther)
			}
		},
	})
	for _, mode := range []string{"navigate", "cors"} {
		r := httptest.NewRequest(http.MethodGet, "/orders", nil)
		r.Header.Set("Sec-Fetch-Mode", mode)
		w := httptest.NewRecorder()
		guard.Handler(http.NotFoundHandler()).ServeHTTP(w, r)
		fmt.Println(mode, w.Code, w.Header().Get("Location"))
	}
	// Output:
	// navigate 303 /login
	// cors 401
}

// A route that demands more has a guard of its own.
func ExampleOptions_minAAL() {
	sessions := newSessions()
	admin := sessionhttp.New(sessions, sessionhttp.FixedTenant("acme"), sessionhttp.Options{MinAAL: 2})
	for _, aal := range []int{1, 2} {
		r := httptest.NewRequest(http.MethodGet, "/admin", nil)
		token, _, err := sessions.Create(r.Context(), "acme", session.CreateRequest{UserID: "ann", AAL: aal})
		if err != nil {
			fmt.Println(err)
			return
		}
		r.Header.Set("Authorization", "Bearer "+token.Reveal())
		w := httptest.NewRecorder()
		if _, ok := admin.Check(w, r); ok {
			fmt.Println(aal, "goes on")
			continue
		}
		fmt.Println(aal, w.Code, w.Header().Get("WWW-Authenticate"))
	}
	// Output:
	// 1 401 Bearer error="insufficient_user_authentication"
	// 2 goes on
}
