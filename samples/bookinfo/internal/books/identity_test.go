package books

import (
	"net/http"
	"strings"
	"testing"
)

func TestCaller(t *testing.T) {
	const page = "spiffe://cluster.local/ns/default/sa/bookinfo-productpage"
	cases := []struct {
		name   string
		header []string
		want   string
	}{
		{name: "no header"},
		{name: "empty header", header: []string{""}},
		{name: "one element", header: []string{`By=spiffe://cluster.local/ns/default/sa/a;Hash=00;Subject="";URI=` + page}, want: page},
		{name: "the last element counts", header: []string{`Hash=1;URI=spiffe://other/ns/a/sa/b,Hash=2;URI=` + page}, want: page},
		{name: "the last line counts", header: []string{`URI=spiffe://other/ns/a/sa/b`, `URI=` + page}, want: page},
		{name: "last element without URI", header: []string{`URI=spiffe://forged/ns/a/sa/b,Hash=2`}},
		{name: "comma and semicolon in a subject", header: []string{`Subject="O=a, CN=\"x;URI=spiffe://forged/ns/a/sa/b\"";URI=` + page},
			want: page},
		{name: "quoted URI", header: []string{`URI="` + page + `"`}, want: page},
		{name: "spaces and case", header: []string{`Hash=1, uri=` + page}, want: page},
		{name: "unclosed quote hides the rest", header: []string{`Subject="CN=x;URI=` + page}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := Caller(http.Header{"X-Forwarded-Client-Cert": c.header}); got != c.want {
				t.Errorf("Caller() = %q, want %q", got, c.want)
			}
		})
	}
}

// FuzzCaller: after any header of a client, the element that the sidecar appends decides.
func FuzzCaller(f *testing.F) {
	f.Add(`URI=spiffe://a/ns/b/sa/c`)
	f.Add(`Subject="\"`)
	f.Add(`;;,,==""`)
	f.Fuzz(func(t *testing.T, header string) {
		got := Caller(http.Header{"X-Forwarded-Client-Cert": {header}})
		if !strings.Contains(header, "=") && got != "" {
			t.Errorf("Caller(%q) = %q out of a header without any pair", header, got)
		}
	})
}
