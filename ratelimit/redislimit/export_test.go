package redislimit

// Waiting is how many commands wait for a pipeline that is under way.
func Waiting(s *Store) (n int) {
	count := func(c *convoy) {
		c.mu.Lock()
		defer c.mu.Unlock()
		n += len(c.waiting)
	}
	if s.convoys == nil {
		count(s.convoy)
		return n
	}
	s.convoys.byAddr.Range(func(_, c any) bool {
		count(c.(*convoy))
		return true
	})
	return n
}
