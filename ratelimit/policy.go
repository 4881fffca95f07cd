package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// A policy is a Policy that was found correct, made ready for deciding.
type policy struct {
	Policy
	rules   []ruleSet // of the limits, in their order
	beside  []bool    // by limit: its tag is of the policy's slot, and not of its whole key
	denials *denials  // of the set, nil where none are remembered

	leaseMost int64    // what a node takes at once at most, 0 where nothing is leased
	leasedBy  []string // the descriptors that tell leases apart
}

// A ruleSet is the rules of one limit: its own, and behind it those of its overrides.
type ruleSet []Rule

// compile checks the policies and makes them ready, by name. Its error names every mistake.
func compile(policies []Policy) (map[string]*policy, error) {
	compiled := make(map[string]*policy, len(policies))
	var wrong mistakes
	for _, p := range policies {
		bad := p.mistakes()
		if _, taken := compiled[p.Name]; taken {
			bad.add(errors.New("another policy has this name"))
		}
		wrong.addAll("ratelimit: policy", p.Name, bad)
		compiled[p.Name] = p.ready()
	}
	return compiled, errors.Join(wrong...)
}

// CheckPolicies says everything that is wrong with the policies, one mistake a line; nil means that New accepts them.
func CheckPolicies(policies []Policy) error {
	_, err := compile(policies)
	return err
}

func (p Policy) ready() *policy {
	c := &policy{Policy: p.clone()}
	for _, limit := range c.Limits {
		set := ruleSet{limit.rule()}
		for _, o := range limit.Overrides {
			changed := limit
			changed.Numbers = limit.with(o.Numbers)
			set = append(set, changed.rule())
		}
		c.rules = append(c.rules, set)
		c.beside = append(c.beside, c.inSlot(limit) && !slices.Equal(c.slot(), limit.Key))
	}
	c.readyToLease()
	return c
}

func (p Policy) clone() Policy {
	p.Slot = slices.Clone(p.Slot)
	p.Limits = slices.Clone(p.Limits)
	for i := range p.Limits {
		l := &p.Limits[i]
		l.Key, l.Overrides = slices.Clone(l.Key), slices.Clone(l.Overrides)
		for j := range l.Overrides {
			l.Overrides[j].Match = maps.Clone(l.Overrides[j].Match)
		}
	}
	return p
}

// version is a short hash of the policies in their given order.
func version(policies []Policy) (string, error) {
	canonical, err := json.Marshal(policies)
	if err != nil {
		return "", fmt.Errorf("hash the policies: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:8]), nil
}

// descriptorKey joins the tenant and the named descriptors, each part behind its length,
// so that no two sets of descriptors share a key. One that is the same as known is known itself.
func descriptorKey(tenant, limit string, names []string, descriptors map[string]string, known string) (string, error) {
	var room [256]byte // on the stack
	key := appendPart(room[:0], tenant)
	for _, name := range names {
		value, ok := descriptors[name]
		if !ok {
			return "", descriptorError("lack %q, which limit %s needs", name, limit)
		}
		key = appendPart(appendPart(key, name), value)
	}
	if string(key) == known {
		return known, nil
	}
	return string(key), nil
}

func appendPart(key []byte, part string) []byte {
	return append(appendLength(key, part), part...)
}

func appendLength(key []byte, part string) []byte {
	return append(strconv.AppendInt(key, int64(len(part)), 10), ':')
}
