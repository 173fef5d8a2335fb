package scope

import "testing"

func TestAdmits(t *testing.T) {
	for _, tc := range []struct {
		hosts           []string
		namespace, host string
		want            bool
	}{
		{nil, "any", "a.example.com", true},
		{[]string{}, "any", "a.example.com", false},
		{[]string{"*/*"}, "any", "a.example.com", true},
		{[]string{"./*"}, "own", "a.example.com", true},
		{[]string{"./*"}, "other", "a.example.com", false},
		{[]string{"other/*.example.com"}, "other", "a.example.com", true},
		{[]string{"other/*.example.com"}, "other", "example.com", false},
		{[]string{"other/a.example.com"}, "other", "b.example.com", false},
		{[]string{"malformed"}, "own", "malformed", false},
	} {
		l := Listener{hosts: tc.hosts, own: "own"}
		if got := l.Admits(tc.namespace, tc.host); got != tc.want {
			t.Errorf("%v admits %s of %s: %v", tc.hosts, tc.host, tc.namespace, got)
		}
	}
}
