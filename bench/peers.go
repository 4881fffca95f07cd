package main

import (
	"context"
	"net/http"
	"time"

	"github.com/alexedwards/scs/goredisstore"
	"github.com/alexedwards/scs/v2"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
)

// serveFloor is the least that a session check over HTTP and Redis can be: one
// GET, and its value as the answer. It knows no keys, expiry or revocation.
func serveFloor(ctx context.Context, addr, redisAddr string) error {
	client := redis.NewClient(&redis.Options{Addr: redisAddr, DB: 1})
	if err := client.Set(ctx, "bench:floor", `{"active":true}`, time.Hour).Err(); err != nil {
		return err
	}
	e := echo.New()
	e.GET("/check", func(c echo.Context) error { //nolint:contextcheck // each request has its own
		value, err := client.Get(c.Request().Context(), "bench:floor").Bytes()
		if err != nil {
			return err
		}
		return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, value)
	})
	return e.Start(addr)
}

// serveSCS is the peer: a handler that loads its session and changes it, which
// is one GET and one SET in Redis.
func serveSCS(_ context.Context, addr, redisAddr string) error {
	manager := scs.New()
	manager.Store = goredisstore.New(redis.NewClient(&redis.Options{Addr: redisAddr, DB: 1}))
	handler := manager.LoadAndSave(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		manager.Put(r.Context(), "seen", time.Now().UnixMilli())
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"active":true}`))
	}))
	server := &http.Server{Addr: addr, Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	return server.ListenAndServe()
}
