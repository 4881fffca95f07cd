package client

import (
	"errors"
	"testing"

	"github.com/coordsvc/coordsvc/api"
)

// What is changed of a user, or of all, is changed once, also where the first answer is lost.
func TestUsers(t *testing.T) {
	c, f := connect(t, Options{})
	ctx := t.Context()
	const user, why = "users", "stolen laptop"
	login := func() api.SessionToken {
		t.Helper()
		s, err := c.CreateSession(ctx, api.CreateSession{UserID: user})
		if err != nil {
			t.Fatal(err)
		}
		return s.Token
	}
	verify := func(token api.SessionToken) api.Verdict {
		t.Helper()
		v, err := c.VerifySession(ctx, api.VerifySession{Token: token})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	before, err := c.Epochs(ctx, user)
	if err != nil || before.Disabled {
		t.Fatalf("%+v, %v", before, err)
	}
	token := login()
	f.set(lost)
	if e, err := c.BumpPermissionEpoch(ctx, user, api.BumpPermissionEpoch{}); err != nil || e.PermissionEpoch != before.PermissionEpoch+1 || f.sent.Load() != 2 {
		t.Errorf("%+v, %v after %d requests", e, err, f.sent.Load())
	}
	if v := verify(token); !v.Active || v.PermissionsStale == nil || !*v.PermissionsStale {
		t.Errorf("after new permissions: %+v", v)
	}
	f.set(lost)
	if s, err := c.DisableUser(ctx, user, api.UserSwitch{Reason: why}); err != nil || !s.Disabled || f.sent.Load() != 2 || verify(token).Active {
		t.Errorf("%+v, %v after %d requests", s, err, f.sent.Load())
	}
	if _, err := c.CreateSession(ctx, api.CreateSession{UserID: user}); !IsCode(err, api.CodeUserDisabled) {
		t.Errorf("a login of a disabled user: %v", err)
	}
	f.set(lost)
	enabled, err := c.EnableUser(ctx, user, api.UserSwitch{Reason: why})
	if err != nil || enabled.Disabled || f.sent.Load() != 2 || verify(token).Active {
		t.Errorf("%+v, %v after %d requests", enabled, err, f.sent.Load())
	}
	if e, err := c.Epochs(ctx, user); err != nil || e.SessionVersion != enabled.SessionVersion {
		t.Errorf("%+v, %v; enabled with %+v", e, err, enabled)
	}

	token = login()
	if _, err := c.LogoutTenant(ctx, api.Confirmed{Reason: why, Confirm: "another"}); !refusesConfirm(err) || !verify(token).Active {
		t.Errorf("another tenant's name: %v", err)
	}
	f.set(lost)
	if out, err := c.LogoutTenant(ctx, api.Confirmed{Reason: why, Confirm: "default"}); err != nil || out.EffectiveBy.IsZero() || f.sent.Load() != 2 || verify(token).Active {
		t.Errorf("%+v, %v after %d requests", out, err, f.sent.Load())
	}

	token = login()
	if _, err := c.EraseUser(ctx, user, api.Confirmed{Reason: why, Confirm: "another"}); !refusesConfirm(err) || !verify(token).Active {
		t.Errorf("another user's name: %v", err)
	}
	f.set(lost)
	if s, err := c.EraseUser(ctx, user, api.Confirmed{Reason: why, Confirm: user}); err != nil || !s.Disabled || f.sent.Load() != 2 || verify(token).Active {
		t.Errorf("%+v, %v after %d requests", s, err, f.sent.Load())
	}

	acts := map[api.EventAction]int{}
	for e, err := range c.Events(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Reason == why {
			acts[e.Action]++
		}
	}
	for act, times := range map[api.EventAction]int{api.EventActionDisable: 1, api.EventActionEnable: 1, api.EventActionTenantLogoutAll: 1, api.EventActionErase: 2} {
		if acts[act] != times {
			t.Errorf("%s %d times, want %d", act, acts[act], times)
		}
	}
}

func refusesConfirm(err error) bool {
	p, ok := errors.AsType[*ProblemError](err)
	return ok && p.Code == api.CodeInvalidValue && p.Field == "confirm"
}
