package httpapi

import (
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/keytype"
)

func (s *server) createAPIKey(c echo.Context, key auth.Key) error {
	var body api.CreateAPIKey
	if err := bind(c, &body); err != nil {
		return err
	}
	req := auth.NewKey{Name: body.Name, Scopes: list[auth.Scope](body.Scopes)}
	if body.ExpiresAt != nil {
		req.ExpiresAt = body.ExpiresAt.Time
	}
	secret, made, err := s.Auth.Create(c.Request().Context(), key.Tenant, &key, req)
	if errors.Is(err, auth.ErrScope) {
		return &scopeError{firstMissing(key, req.Scopes)}
	}
	if err != nil {
		return err
	}
	s.record(c, key, audit.Event{Action: audit.KeyCreate, Subject: made.ID})
	k := apiKeyJSON(made)
	return write(c, http.StatusCreated, api.CreatedAPIKey{
		ID: k.ID, Tenant: k.Tenant, Name: k.Name, Scopes: k.Scopes, CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, Key: secret.Reveal(),
	})
}

func (s *server) listAPIKeys(c echo.Context, key auth.Key) error {
	keys, err := s.Auth.List(c.Request().Context(), key.Tenant)
	if err != nil {
		return err
	}
	return write(c, http.StatusOK, api.APIKeyList{APIKeys: each(keys, apiKeyJSON)})
}

func (s *server) deleteAPIKey(c echo.Context, key auth.Key) error {
	if err := s.Auth.Revoke(c.Request().Context(), key.Tenant, c.Param("id")); err != nil {
		return err
	}
	s.record(c, key, audit.Event{Action: audit.KeyRevoke, Subject: c.Param("id")})
	return noContent(c)
}

func firstMissing(key auth.Key, scopes []auth.Scope) auth.Scope {
	for _, scope := range scopes {
		if !key.Allows(scope) {
			return scope
		}
	}
	return ""
}

func apiKeyJSON(k auth.Key) api.APIKey {
	return api.APIKey{
		ID:        k.ID,
		Tenant:    k.Tenant,
		Name:      k.Name,
		Scopes:    list[api.Scope](k.Scopes),
		CreatedAt: api.At(k.CreatedAt),
		ExpiresAt: optionalInstant(k.ExpiresAt),
	}
}

// listKeyTypes says what is promised, and what holds in this mode.
func (s *server) listKeyTypes(c echo.Context, _ auth.Key) error {
	return write(c, http.StatusOK, api.KeyTypeList{KeyTypes: each(keytype.All(), s.keyTypeJSON)})
}

func (s *server) keyTypeJSON(t *keytype.Type) api.KeyType {
	inForce := s.Mode.InForce(t)
	return api.KeyType{
		Name:           t.Name,
		Owner:          t.Owner,
		Store:          t.Store,
		Durability:     api.KeyTypeDurability(t.Durability),
		Consistency:    t.Consistency,
		OnStoreFailure: t.OnStoreFailure,
		IfLost:         t.IfLost,
		TTL:            t.TTL,
		KeyPattern:     t.Pattern(),
		Runbook:        t.Runbook(),
		Available:      s.Mode.Available(t),
		InForce:        api.InForce{Store: inForce.Store, Durability: inForce.Durability, Note: inForce.Note},
	}
}

// getContract serves the contract that this binary was built with.
func (s *server) getContract(c echo.Context, _ auth.Key) error {
	return c.Blob(http.StatusOK, "application/yaml", api.Contract)
}
