package subscription

import "testing"

// mesh is what the class has when most scripts begin.
var mesh = []step{
	{"set cds a=1 b=1", ""}, {"set eds a=1 b=1", ""}, {"set lds 80=1", ""}, {"set rds 80=1", ""}, {"set vhds 80/a=1 80/b=1", ""},
}

func TestDelta(t *testing.T) {
	for about, steps := range map[string][]step{
		"a wildcard has everything, also later": {
			{"sub cds", "cds +a +b"}, {"ack cds", ""},
			{"set cds c=1", "cds +c"}, {"ack cds", ""},
			{"set cds a=2", "cds +a"}, {"ack cds", ""},
			{"set cds b", "cds -b"}, {"ack cds", ""},
		},
		"names have what they name, or its absence": {
			{"sub eds a x", "eds +a -x"}, {"ack eds", ""},
			{"set eds b=2", ""}, {"set eds x=1", "eds +x"}, {"ack eds", ""},
			{"unsub eds a", ""}, {"set eds a=2", ""},
			{"sub eds a", "eds +a"},
		},
		"a type that is requested by name only has no legacy wildcard": {
			{"sub eds", ""}, {"set eds a=2", ""}, {"sub eds a", "eds +a"},
		},
		"the wildcard ends when it is unsubscribed from": {
			{"sub cds * a", "cds +a +b"}, {"ack cds", ""}, {"unsub cds *", ""},
			{"set cds b=2", ""}, {"set cds a=2", "cds +a"},
		},
		"a request subscribes first and unsubscribes then": {
			{"sub cds *", "cds +a +b"}, {"ack cds", ""}, {"both cds *", ""}, {"set cds a=2", ""},
			{"both cds a", ""}, {"set cds a=3", ""},
		},
		"a name that the wildcard still covers is sent again when it is unsubscribed from": {
			{"sub cds * a x", "cds +a +b -x"}, {"ack cds", ""}, {"unsub cds a", "cds +a"}, {"ack cds", ""}, {"unsub cds x", "cds -x"},
		},
		"one response of a type is outstanding": {
			{"sub eds a", "eds +a"}, {"set eds a=2", ""}, {"set eds a=3", ""}, {"ack eds", "eds +a"}, {"ack eds", ""},
		},
		"a client that holds everything is sent nothing": {
			{"has cds", ""}, {"has eds a b", ""}, {"set eds a=2", "eds +a"},
		},
		"a response that finds no room is sent later, with the newest": {
			{"full", ""}, {"sub eds a", ""}, {"set eds a=2", ""}, {"free", "eds +a"}, {"ack eds", ""},
		},
	} {
		t.Run(about, func(t *testing.T) {
			s := start(t, true, nil)
			s.run(mesh)
			s.run(steps)
		})
	}
}

// TestAhead has requests between the moment at which the class publishes a change and that at which it tells the
// client: the client is not sent twice what it has been sent already.
func TestAhead(t *testing.T) {
	for about, steps := range map[string][]step{
		"a resource": {
			{"publish eds a=2", ""}, {"sub eds a", "eds +a"}, {"tell", ""}, {"ack eds", ""},
			{"set eds a=3", "eds +a"},
		},
		"a resource that was acknowledged": {
			{"publish eds a=2", ""}, {"sub eds a", "eds +a"}, {"ack eds", ""}, {"tell", ""},
		},
		"a removal": {
			{"sub eds a b", "eds +a +b"}, {"ack eds", ""}, {"publish eds a", ""}, {"sub eds a", "eds -a"}, {"ack eds", ""}, {"tell", ""},
		},
		"another resource of the change": {
			{"sub eds b", "eds +b"}, {"ack eds", ""}, {"publish eds a=2 b=2", ""}, {"sub eds a", "eds +a"}, {"tell", ""}, {"ack eds", "eds +b"},
		},
		"a later change": {
			{"publish eds a=2", ""}, {"sub eds a", "eds +a"}, {"ack eds", ""}, {"publish eds a=3", ""}, {"tell", "eds +a"}, {"ack eds", ""},
		},
		"a change and back, in one": {
			{"publish eds a=2", ""}, {"sub eds a", "eds +a"}, {"ack eds", ""}, {"publish eds a=1", ""}, {"tell", "eds +a"}, {"ack eds", ""},
			{"set eds a=2", "eds +a"},
		},
		"a response that was rejected": {
			{"sub eds a", "eds +a"}, {"ack eds", ""}, {"publish eds b=2", ""}, {"sub eds b", "eds +b"}, {"nack eds no", ""}, {"tell", "eds +a"},
		},
		"routes wait for a new cluster that was sent ahead": {
			{"sub cds *", "cds +a +b"}, {"ack cds", ""}, {"sub rds 80", "rds +80"}, {"ack rds", ""},
			{"publish cds c=1", ""}, {"publish rds 80=2", ""}, {"sub cds c", "cds +c"}, {"tell", ""}, {"ack cds", "rds +80"},
		},
	} {
		t.Run(about, func(t *testing.T) {
			s := start(t, true, nil)
			s.run(mesh)
			s.run(steps)
		})
	}
}

func TestOrder(t *testing.T) {
	connected := []step{
		{"sub cds", "cds +a +b"}, {"ack cds", ""}, {"sub eds a b", "eds +a +b"}, {"ack eds", ""}, {"sub lds", "lds +80"}, {"ack lds", ""},
		{"sub rds 80", "rds +80"}, {"ack rds", ""},
	}
	for about, steps := range map[string][]step{
		"endpoints of a changed cluster are sent again": {
			{"set cds a=2", "cds +a; eds +a"}, {"ack cds", ""}, {"ack eds", ""},
		},
		"listeners and routes wait for a new cluster": {
			{"publish cds c=1", ""}, {"publish lds 80=2", ""}, {"publish rds 80=2", ""}, {"tell", "cds +c"}, {"ack cds", "lds +80; rds +80"},
		},
		"they do not wait for a changed cluster": {
			{"publish cds a=2", ""}, {"publish lds 80=2", ""}, {"tell", "cds +a; eds +a; lds +80"},
		},
		"a cluster is removed after what may refer to it": {
			{"publish cds b", ""}, {"publish rds 80=2", ""}, {"tell", "rds +80"}, {"ack rds", "cds -b"}, {"ack cds", ""},
		},
		"endpoints are removed after their cluster": {
			{"publish cds b", ""}, {"publish eds b", ""}, {"publish rds 80=2", ""}, {"tell", "rds +80"},
			{"ack rds", "cds -b"}, {"ack cds", "eds -b"},
		},
		"nothing waits longer than the order timeout": {
			{"publish cds c=1", ""}, {"publish rds 80=2", ""}, {"tell", "cds +c"}, {"wait", "rds +80"},
		},
	} {
		t.Run(about, func(t *testing.T) {
			s := start(t, true, nil)
			s.run(mesh)
			s.run(connected)
			s.run(steps)
		})
	}
}

func TestRejections(t *testing.T) {
	for about, steps := range map[string][]step{
		"the version that a NACK names is not sent again, the rest is": {
			{"sub cds", "cds +a +b"}, {"nack cds Error adding cluster a: no", ""},
			{"set cds c=1", "cds +b +c"}, {"ack cds", ""},
			{"set cds a=2", "cds +a"}, {"ack cds", ""},
		},
		"versions that are rejected together are tried again when one has changed": {
			{"sub eds a b", "eds +a +b"}, {"nack eds no", ""}, {"set eds a=2", "eds +a +b"},
		},
		"a removal that was rejected is sent again": {
			{"sub cds", "cds +a +b"}, {"ack cds", ""}, {"publish cds b", ""}, {"set cds a=2", "cds +a -b"}, {"nack cds a is bad", ""},
			{"set cds c=1", "cds +c -b"},
		},
	} {
		t.Run(about, func(t *testing.T) {
			s := start(t, true, nil)
			s.run(mesh)
			s.run(steps)
		})
	}
}

func TestVirtualHosts(t *testing.T) {
	for about, steps := range map[string][]step{
		"they follow their route configuration": {
			{"sub vhds", ""}, {"sub rds 80", "rds +80; vhds +80/a +80/b"}, {"ack rds", ""}, {"ack vhds", ""},
			{"set vhds 80/a=2 80/b 80/c=1", "vhds +80/a +80/c -80/b"},
		},
		"a route configuration without virtual hosts is released": {
			{"set rds 81=1", ""}, {"sub vhds", ""}, {"sub rds 81", "rds +81; vhds -81/none"},
		},
		"those that are kept inside come back with the route configuration": {
			{"sub vhds", ""}, {"sub rds 80", "rds +80; vhds +80/a +80/b"}, {"ack rds", ""}, {"ack vhds", ""},
			{"set rds 80=inline", "rds +80"}, {"ack rds", ""}, {"set vhds 80/a=2", ""},
			{"set rds 80=2", "rds +80; vhds +80/a +80/b"},
		},
		"they are removed by name when the client drops the route configuration": {
			{"sub vhds", ""}, {"sub rds 80", "rds +80; vhds +80/a +80/b"}, {"ack rds", ""}, {"ack vhds", ""},
			{"unsub rds 80", "vhds -80/a -80/b"},
		},
		"one that leads to a new cluster waits for it, others do not": {
			{"sub cds *", "cds +a +b"}, {"ack cds", ""}, {"sub vhds", ""}, {"sub rds 80", "rds +80; vhds +80/a +80/b"},
			{"ack rds", ""}, {"ack vhds", ""}, {"publish cds c=1", ""}, {"publish vhds 80/a=2 80/c=to:c", ""},
			{"tell", "cds +c; vhds +80/a"}, {"ack vhds", ""}, {"ack cds", "vhds +80/c"},
		},
		"a name that does not exist is answered": {
			{"sub vhds", ""}, {"sub rds 80", "rds +80; vhds +80/a +80/b"}, {"ack rds", ""}, {"ack vhds", ""},
			{"sub vhds 80/x", "vhds ?80/x"}, {"ack vhds", ""}, {"set vhds 80/x=1", "vhds +80/x"},
		},
		"names beyond the limit are answered as if they did not exist": {
			{"sub vhds", ""}, {"sub rds 80", "rds +80; vhds +80/a +80/b"}, {"ack rds", ""}, {"ack vhds", ""},
			{"sub vhds 80/a 80/x 80/y", "vhds +80/a ?80/y ?80/x"},
		},
	} {
		t.Run(about, func(t *testing.T) {
			s := start(t, true, nil)
			s.run(mesh)
			s.run(steps)
		})
	}
}

func TestSotw(t *testing.T) {
	for about, steps := range map[string][]step{
		"clusters are listed whole": {
			{"sub cds", "cds +a +b"}, {"ack cds", ""}, {"set cds c=1", "cds +a +b +c"}, {"ack cds", ""}, {"set cds a", "cds +b +c"},
		},
		"of named types what has changed is sent": {
			{"sub eds a b", "eds +a +b"}, {"ack eds", ""}, {"set eds a=2", "eds +a"}, {"ack eds", ""}, {"sub eds b", ""}, {"set eds a=3", ""},
			{"sub eds a b", "eds +a"},
		},
		"endpoints that a client waits for and that do not exist are empty": {
			{"sub eds a", "eds +a"}, {"ack eds", ""}, {"sub eds a x", "eds +x"},
		},
		"a request with a nonce that is not the last one only drops names": {
			{"sub eds a", "eds +a"}, {"ack eds", ""}, {"set eds a=2", "eds +a"}, {"old eds b", ""}, {"sub eds a", "eds +a"},
		},
		"the last version that was accepted stands in for a rejected one": {
			{"sub cds", "cds +a +b"}, {"ack cds", ""}, {"set cds a=2", "cds +a +b"}, {"nack cds a is bad", ""}, {"set cds c=1", "cds +a +b +c"},
		},
	} {
		t.Run(about, func(t *testing.T) {
			s := start(t, false, nil)
			s.run(mesh)
			s.run(steps)
		})
	}
}
