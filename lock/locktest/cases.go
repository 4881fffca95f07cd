package locktest

import "time"

const minute = time.Minute

// A number like L19 in a name stands for a failure that happened to others.
var cases = []struct {
	name  string
	steps []step
}{
	{"life of a lock", []step{
		{"free", acquire("lck_a", 10*minute), "done, 10 left"},
		{"held", acquire("lck_b", 10*minute), "held, 10 left"},
		{"held, whoever asks", acquire("lck_a", 10*minute), "held, 10 left"},
		{"later", pass(4 * minute), ""},
		{"the holder has 6 left", acquire("lck_b", 10*minute), "held, 6 left"},
		{"renewed as it was taken", renew("lck_a", 0), "done, 10 left"},
		{"renewed for less", renew("lck_a", 2*minute), "done, 2 left"},
		{"renewed for more", renew("lck_a", 20*minute), "done, 20 left"},
		{"and held for so long", acquire("lck_b", 10*minute), "held, 20 left"},
		{"as it was taken, still", renew("lck_a", 0), "done, 10 left"},
		{"released", release("lck_a"), "done"},
		{"again", release("lck_a"), "done"},
		{"it is not renewed then", renew("lck_a", minute), "lost"},
		{"the next", acquire("lck_b", 10*minute), "done, 10 left"},
	}},
	{"a lock ends", []step{
		{"taken", acquire("lck_a", 10*minute), "done, 10 left"},
		{"its end", pass(10 * minute), ""},
		{"is not renewed", renew("lck_a", 10*minute), "lost"},
		{"is released all the same", release("lck_a"), "done"},
		{"taken by the next", acquire("lck_b", 10*minute), "done, 10 left"},
		{"L22 the one before is told", renew("lck_a", 10*minute), "lost"},
	}},
	{"L18 L19 L21 who does not hold it changes nothing", []step{
		{"taken", acquire("lck_a", 10*minute), "done, 10 left"},
		{"its end", pass(10 * minute), ""},
		{"taken by the next", acquire("lck_b", 10*minute), "done, 10 left"},
		{"a late release", release("lck_a"), "lost, 10 left"},
		{"a late renewal", renew("lck_a", minute), "lost"},
		{"the beginning of an id", release("lck_"), "lost, 10 left"},
		{"and more than it", release("lck_b "), "lost, 10 left"},
		{"and nothing", renew("", minute), "lost"},
		{"still held", acquire("lck_c", minute), "held, 10 left"},
		{"its own release", release("lck_b"), "done"},
	}},
	{"L36 L39 locks do not meet", []step{
		{"one", at("t", "a:b", acquire("lck_1", minute)), "done, 1 left"},
		{"another tenant", at("t2", "a:b", acquire("lck_2", minute)), "done, 1 left"},
		{"parts that read the same together", at("ta", ":b", acquire("lck_3", minute)), "done, 1 left"},
		{"braces", at("t", "{a}:b", acquire("lck_4", minute)), "done, 1 left"},
		{"the composed letter", at("t", "é", acquire("lck_5", minute)), "done, 1 left"},
		{"is not the decomposed one", at("t", "e\u0301", acquire("lck_6", minute)), "done, 1 left"},
		{"an id is of one lock", at("t", "{a}:b", release("lck_1")), "lost, 1 left"},
		{"the first one is still held", at("t", "a:b", acquire("lck_7", minute)), "held, 1 left"},
	}},
}
