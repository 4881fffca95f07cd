package policy

import (
	"slices"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// A compiled policy, and where its name stands.
type compiled struct {
	ratelimit.Policy
	name  value
	notes []Finding
}

// policies reads a file.
func (r *reader) policies(text []byte) []compiled {
	doc, ok := r.document(text)
	if !ok {
		return nil
	}
	top := r.object(doc, "version", "policies")
	if r.require(top, "version") && r.integer(top.at("version")) != 1 {
		r.wrongAt(top.at("version"), "must be 1")
	}
	if !r.require(top, "policies") {
		return nil
	}
	var all []compiled
	for _, v := range r.list(top.at("policies")) {
		all = append(all, r.policy(v))
	}
	return all
}

func (r *reader) policy(v value) compiled {
	o := r.object(v, "name", "owner", "on_store_failure", "local", "stage", "enforce_from", "slot", "mode", "max_overshoot", "limits")
	p := ratelimit.Policy{Name: r.requiredText(o, "name", "x"), Posture: r.posture(o), Stage: ratelimit.Enforce}
	if o.has("owner") {
		p.Owner = r.text(o.at("owner"), "")
	}
	if o.has("stage") {
		p.Stage, p.Percent = r.stage(o.at("stage"))
	}
	if o.has("enforce_from") {
		p.EnforceFrom = r.date(o.at("enforce_from"), p.Stage)
	}
	if o.has("local") {
		p.Local = r.local(o.at("local"), p.Posture)
	}
	if o.has("slot") {
		p.Slot = r.texts(o.at("slot"), "x")
	}
	p.Mode, p.MaxOvershoot = r.mode(o)
	before := len(r.wrong)
	limits := r.limits(o)
	for _, l := range limits {
		p.Limits = append(p.Limits, l.Limit)
	}
	c := compiled{Policy: p, name: o.at("name")}
	r.judgePolicy(o, p, len(r.wrong) == before)
	c.notes = append(r.apart(p, limits), r.unleasable(p, limits)...)
	return c
}

func (r *reader) requiredText(o object, name, otherwise string) string {
	if !r.require(o, name) {
		return otherwise
	}
	return r.text(o.at(name), otherwise)
}

func (r *reader) posture(o object) ratelimit.Posture {
	all := []ratelimit.Posture{ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.Local}
	p := ratelimit.Posture(r.requiredText(o, "on_store_failure", string(ratelimit.FailOpen)))
	if !slices.Contains(all, p) {
		r.wrongAt(o.at("on_store_failure"), "must be %s, %s or %s", ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.Local)
		return ratelimit.FailOpen
	}
	return p
}

// stage reads shadow, warn, enforce, or {canary: percent}.
func (r *reader) stage(v value) (ratelimit.Stage, int64) {
	if _, mapping := v.node.(*ast.MappingNode); mapping {
		o := r.object(v, string(ratelimit.Canary))
		percent := int64(1)
		if r.require(o, string(ratelimit.Canary)) {
			percent = r.integer(o.at(string(ratelimit.Canary)))
		}
		return ratelimit.Canary, percent
	}
	s := ratelimit.Stage(r.text(v, string(ratelimit.Enforce)))
	if !slices.Contains([]ratelimit.Stage{ratelimit.Shadow, ratelimit.Warn, ratelimit.Enforce}, s) {
		r.wrongAt(v, "must be shadow, warn, enforce, or {canary: 5} for 5 percent of the identities")
		return ratelimit.Enforce, 0
	}
	return s, 0
}

// mode reads exact, which is the zero mode, or leased and how many units all nodes may hold then.
func (r *reader) mode(o object) (mode ratelimit.Mode, maxOvershoot int64) {
	if o.has("mode") {
		mode = ratelimit.Mode(r.text(o.at("mode"), string(ratelimit.Exact)))
	}
	switch mode {
	case "", ratelimit.Exact:
		if o.has("max_overshoot") {
			r.wrongAt(o.at("max_overshoot"), "belongs to mode: %s", ratelimit.Leased)
		}
	case ratelimit.Leased:
		if o.has("max_overshoot") {
			return mode, r.integer(o.at("max_overshoot"))
		}
		r.wrongAt(o.at("max_overshoot"), "is required with mode: %s", ratelimit.Leased)
	default:
		r.wrongAt(o.at("mode"), "must be %s or %s", ratelimit.Exact, ratelimit.Leased)
	}
	return "", 0
}

func (r *reader) date(v value, stage ratelimit.Stage) time.Time {
	date, err := time.Parse(time.DateOnly, r.text(v, time.DateOnly))
	if err != nil {
		r.wrongAt(v, "must be a date such as 2027-01-15")
		return time.Time{}
	}
	if stage != ratelimit.Warn {
		r.wrongAt(v, "belongs to stage %s, which announces it", ratelimit.Warn)
		return time.Time{}
	}
	return date
}

// local reads what a node allows by itself.
func (r *reader) local(v value, posture ratelimit.Posture) ratelimit.LocalRate {
	o := r.object(v, "rate", "burst")
	rate := r.requiredRate(o)
	l := ratelimit.LocalRate{Rate: rate, Burst: rate.Count}
	if o.has("burst") {
		l.Burst = r.integer(o.at("burst"))
	}
	if posture != ratelimit.Local {
		r.wrongAt(v, "belongs to on_store_failure: %s", ratelimit.Local)
		return ratelimit.LocalRate{}
	}
	return l
}

func (r *reader) requiredRate(o object) ratelimit.Rate {
	if !r.require(o, "rate") {
		return ratelimit.Rate{Count: 1, Per: time.Second}
	}
	return r.rate(o.at("rate"))
}
