package sessiontest

import (
	"fmt"
	"reflect"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/session"
)

func (h *history) rotate(t *rapid.T) {
	s := h.any(t)
	if s == nil {
		return
	}
	h.tokens++
	op := session.RotateOp{Key: s.key(), TokenHash: h.hash(t, s), NewHash: hash(fmt.Sprint("rotated ", h.tokens)), Now: h.now}
	op.AAL = rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "aal")
	got := ask(h, "rotate", func(store session.Store) (answer[session.Session], error) {
		made, _, outcome, err := store.Rotate(h.test.Context(), op)
		return answer[session.Session]{made, outcome}, err
	})
	done := got.outcome == session.Done
	if wrong := !reflect.DeepEqual(op.TokenHash, s.hash); wrong && done {
		h.Fatal("rotated by a wrong token")
	} else if !wrong {
		h.check("rotate", s, done)
	}
	if !done {
		return
	}
	h.counts["rotate"]++
	s.previous, s.grace, s.hash, s.pe = s.level, h.now.Add(session.Grace), op.NewHash, h.users[s.user].PermissionEpoch
	if op.AAL > 0 {
		s.aal, s.authAt = max(s.aal, op.AAL), h.now
	}
	if h.now.After(s.lastUse) {
		s.lastUse = h.now
	}
	if !got.value.ExpiresAt.Equal(s.made.Add(absolute)) || got.value.AAL != s.aal || !got.value.AuthAt.Equal(s.authAt) {
		h.Fatalf("rotated: %+v of %+v", got.value, s)
	}
}

func (h *history) readData(t *rapid.T) {
	s := h.any(t)
	if s == nil {
		return
	}
	got := ask(h, "read data", func(store session.Store) (answer[session.Data], error) {
		d, outcome, err := store.ReadData(h.test.Context(), session.GetOp{Key: s.key(), Now: h.now})
		return answer[session.Data]{d, outcome}, err
	})
	h.check("read data", s, got.outcome == session.Done)
	if got.outcome == session.Done && !reflect.DeepEqual(got.value, s.Data) {
		h.Fatalf("read data: %+v, want %+v", got.value, s.Data)
	}
	h.counts["read data"]++
}

func (h *history) writeData(t *rapid.T) {
	s := h.any(t)
	if s == nil {
		return
	}
	h.tokens++
	op := session.WriteDataOp{Key: s.key(), Data: fmt.Append(nil, h.tokens), Version: s.Version - rapid.SampledFrom([]int64{0, 0, 1}).Draw(t, "behind"), Now: h.now}
	got := ask(h, "write data", func(store session.Store) (answer[int64], error) {
		version, outcome, err := store.WriteData(h.test.Context(), op)
		return answer[int64]{version, outcome}, err
	})
	h.check("write data", s, got.outcome != session.RefusedUnknown)
	if got.outcome == session.RefusedUnknown {
		return
	}
	if (got.outcome == session.Done) != (op.Version == s.Version) {
		h.Fatalf("write data: outcome %d for version %d of %d", got.outcome, op.Version, s.Version)
	}
	if got.outcome == session.Done {
		h.counts["write data"]++
		s.Data = session.Data{Value: op.Data, Version: s.Version + 1}
	}
}
