package session_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/session"
)

func Example() {
	ctx := context.Background()
	clock := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	store := session.NewLocal(embedded.Memory())
	sessions := session.New(store, session.Options{
		RouteKey: []byte("32 bytes, fixed for all the data"),
		Now:      func() time.Time { return clock },
	})

	token, s, err := sessions.Create(ctx, "acme", session.CreateRequest{UserID: "ann", AMR: []string{"pwd"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("a log sees", token)
	fmt.Println("good until", s.ExpiresAt.Format(time.TimeOnly), "or idle at", s.IdleExpiresAt.Format(time.TimeOnly))

	verify := func(why string, req session.VerifyRequest) {
		v, err := sessions.Verify(ctx, "acme", token.Reveal(), req)
		fmt.Println(why, v.Active, v.Reason, err)
	}
	verify("at once:", session.VerifyRequest{})
	verify("for a second factor:", session.VerifyRequest{MinAAL: 2})

	if _, err := sessions.LogoutAll(ctx, "acme", "ann", ""); err != nil {
		fmt.Println(err)
		return
	}
	verify("logged out everywhere:", session.VerifyRequest{})

	checked := int64(1) // the session version when the password was checked
	_, _, err = sessions.Create(ctx, "acme", session.CreateRequest{UserID: "ann", ExpectedVersion: &checked})
	fmt.Println("a login from before:", errors.Is(err, session.ErrEpochMismatch))
	// Output:
	// a log sees [session token]
	// good until 00:00:00 or idle at 12:35:00
	// at once: true  <nil>
	// for a second factor: false aal <nil>
	// logged out everywhere: false epoch <nil>
	// a login from before: true
}

// A second factor, or a change of the user's rights: a new token for the same session.
func ExampleManager_Rotate() {
	ctx := context.Background()
	sessions := session.New(session.NewLocal(embedded.Memory()), session.Options{RouteKey: make([]byte, 32)})
	token, _, err := sessions.Create(ctx, "acme", session.CreateRequest{UserID: "ann", AMR: []string{"pwd"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	stepped, err := sessions.Rotate(ctx, "acme", token.Reveal(), session.RotateRequest{AAL: 2, AMR: []string{"pwd", "otp"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for name, text := range map[string]string{"old": token.Reveal(), "new": stepped.Token.Reveal()} {
		v, err := sessions.Verify(ctx, "acme", text, session.VerifyRequest{MinAAL: 2})
		fmt.Println(name, v.Active, v.Reason, err)
	}
	_, err = sessions.Rotate(ctx, "acme", token.Reveal(), session.RotateRequest{})
	fmt.Println(errors.Is(err, session.ErrNotActive))
	// Unordered output:
	// old false aal <nil>
	// new true  <nil>
	// true
}
