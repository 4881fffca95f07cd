package redislimit

// Waiting is how many commands wait for a pipeline that is under way.
func Waiting(s *Store) int {
	s.convoy.mu.Lock()
	defer s.convoy.mu.Unlock()
	return len(s.convoy.waiting)
}
