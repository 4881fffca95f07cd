package sessionecho_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/sessionecho"
	"github.com/coordsvc/coordsvc/session/sessionhttp"
)

func Example() {
	store := session.NewLocal(embedded.Memory())
	sessions := session.New(store, session.Options{RouteKey: []byte("32 bytes, fixed for all the data")})
	guard := sessionhttp.New(sessions, sessionhttp.FixedTenant("acme"), sessionhttp.Options{})

	e := echo.New()
	e.Use(echo.WrapMiddleware(http.NewCrossOriginProtection().Handler))
	e.POST("/login", func(c echo.Context) error {
		// … the password was right
		token, s, err := sessions.Create(c.Request().Context(), "acme", session.CreateRequest{UserID: "ann"})
		if err != nil {
			return err
		}
		guard.SetCookie(c.Response(), token, s)
		return c.NoContent(http.StatusNoContent)
	})
	private := e.Group("/account", sessionecho.Middleware(guard))
	private.GET("", func(c echo.Context) error {
		v, _ := sessionecho.FromContext(c)
		return c.String(http.StatusOK, "hello "+v.Session.UserID)
	})

	account := httptest.NewRequest(http.MethodGet, "/account", nil)
	refused := httptest.NewRecorder()
	e.ServeHTTP(refused, account)
	fmt.Println(refused.Code)

	login := httptest.NewRecorder()
	e.ServeHTTP(login, httptest.NewRequest(http.MethodPost, "/login", nil))
	for _, cookie := range login.Result().Cookies() {
		account.AddCookie(cookie)
	}
	welcome := httptest.NewRecorder()
	e.ServeHTTP(welcome, account)
	fmt.Println(welcome.Code, welcome.Body)
	// Output:
	// 401
	// 200 hello ann
}
