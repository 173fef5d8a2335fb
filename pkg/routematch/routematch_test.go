package routematch_test

import (
	"math/rand/v2"
	"net/http"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/routematch"
)

func exact(text string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: text}}
}

func prefix(text string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: text}}
}

func regex(text string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: text}}
}

func values(name string, v *networking.StringMatch) map[string]*networking.StringMatch {
	return map[string]*networking.StringMatch{name: v}
}

func read(t *testing.T, in *networking.HTTPMatchRequest, elements bool) *routematch.Match {
	t.Helper()
	m, err := routematch.New(in, elements)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMatches(t *testing.T) {
	request := routematch.Request{Method: "GET", Path: "/a/b", Query: "q=1&q=2&&empty", Header: http.Header{"X-One": {"1", "2"}}}
	for text, c := range map[string]struct {
		match    *networking.HTTPMatchRequest
		elements bool
		want     bool
	}{
		"everything":       {nil, false, true},
		"path /a/b":        {&networking.HTTPMatchRequest{Uri: exact("/a/b")}, false, true},
		"path /a":          {&networking.HTTPMatchRequest{Uri: exact("/a")}, false, false},
		"path /a/*":        {&networking.HTTPMatchRequest{Uri: prefix("/a/")}, true, true},
		"path /a/b/*":      {&networking.HTTPMatchRequest{Uri: prefix("/a/b")}, true, true},
		"path /a/b/c/*":    {&networking.HTTPMatchRequest{Uri: prefix("/a/b/c")}, true, false},
		"path /*":          {&networking.HTTPMatchRequest{Uri: prefix("/")}, true, true},
		"path /a*":         {&networking.HTTPMatchRequest{Uri: prefix("/a")}, false, true},
		"path ~/.":         {&networking.HTTPMatchRequest{Uri: regex("/.")}, false, false},
		"path ~/.|/a/.":    {&networking.HTTPMatchRequest{Uri: regex("/.|/a/.")}, false, true},
		"method GET":       {&networking.HTTPMatchRequest{Method: exact("GET")}, false, true},
		"method PUT":       {&networking.HTTPMatchRequest{Method: exact("PUT")}, false, false},
		"header X-One=1,2": {&networking.HTTPMatchRequest{Headers: values("x-one", exact("1,2"))}, false, true},
		"header X-One=1":   {&networking.HTTPMatchRequest{Headers: values("x-one", exact("1"))}, false, false},
		"header X-Two=~.*": {&networking.HTTPMatchRequest{Headers: values("x-two", regex(".*"))}, false, false},
		"query q=1":        {&networking.HTTPMatchRequest{QueryParams: values("q", exact("1"))}, false, true},
		"query q=2":        {&networking.HTTPMatchRequest{QueryParams: values("q", exact("2"))}, false, false},
		"query empty=":     {&networking.HTTPMatchRequest{QueryParams: values("empty", exact(""))}, false, true},
		"query =":          {&networking.HTTPMatchRequest{QueryParams: values("", exact(""))}, false, false},
		"path /a/b, method GET, query q=1": {&networking.HTTPMatchRequest{Uri: exact("/a/b"), Method: exact("GET"),
			QueryParams: values("q", exact("1"))}, false, true},
	} {
		m := read(t, c.match, c.elements)
		if got := m.Matches(request); got != c.want {
			t.Errorf("%s: %v", text, got)
		}
		if got := m.String(); got != text && text != "path /*" {
			t.Errorf("%q is written %q", text, got)
		}
	}
}

// TestElements: a prefix of the Gateway API takes whole elements of the path.
func TestElements(t *testing.T) {
	match := &networking.HTTPMatchRequest{Uri: prefix("/a")}
	whole, text := read(t, match, true), read(t, match, false)
	for path, want := range map[string]bool{"/a": true, "/a/": true, "/a/b": true, "/ab": false} {
		if r := (routematch.Request{Path: path}); whole.Matches(r) != want || !text.Matches(r) {
			t.Errorf("%s: %v and %v", path, whole.Matches(r), text.Matches(r))
		}
	}
}

func TestNotRead(t *testing.T) {
	for _, m := range []*networking.HTTPMatchRequest{
		{Authority: exact("a")}, {Scheme: exact("a")}, {WithoutHeaders: values("a", nil)}, {IgnoreUriCase: true}, {Uri: regex("(")},
		{Headers: values("a", regex("("))},
	} {
		if _, err := routematch.New(m, false); err == nil {
			t.Errorf("%v is read", m)
		}
	}
}

// TestCovers checks random matches with random requests: what a match covers, it matches, and what it is disjoint of it
// does not. And it covers what it should.
func TestCovers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	texts := []string{"/a", "/ab", "/a/b", "/a/", "/"}
	drawn := func() *routematch.Match {
		m := &networking.HTTPMatchRequest{}
		switch text := pick(texts...); random.IntN(4) {
		case 0:
			m.Uri = exact(text)
		case 1:
			m.Uri = prefix(text)
		case 2:
			m.Uri = regex(pick("/a.*", ".*", "/a"))
		}
		if random.IntN(3) == 0 {
			m.Method = exact(pick("GET", "PUT"))
		}
		if random.IntN(3) == 0 {
			m.Headers = values("h", exact(pick("1", "2")))
		}
		if random.IntN(3) == 0 {
			m.QueryParams = values("q", regex(pick("1", ".")))
		}
		return read(t, m, random.IntN(2) == 0)
	}
	covered, refuted, apart, together := 0, 0, 0, 0
	for range 20000 {
		a, b := drawn(), drawn()
		covers, disjoint := a.Covers(b), a.Disjoint(b)
		if disjoint {
			apart++
		}
		if covers {
			covered++
		}
		for range 20 {
			r := routematch.Request{Method: pick("GET", "PUT"), Path: pick(append(texts, "/b", "/abc", "/a/b/c")...), Query: pick("", "q=1", "q=2"),
				Header: http.Header{"H": {pick("1", "2")}}}
			if b.Matches(r) && a.Matches(r) {
				together++
				if disjoint {
					t.Fatalf("%s and %s are disjoint, and both match %+v", a, b, r)
				}
			}
			if b.Matches(r) && !a.Matches(r) {
				refuted++
				if covers {
					t.Fatalf("%s covers %s, and does not match %+v", a, b, r)
				}
			}
		}
	}
	if covered < 1000 || refuted < 1000 || apart < 1000 || together < 1000 {
		t.Errorf("%d covered, %d requests are not; %d disjoint, %d requests of both", covered, refuted, apart, together)
	}
	for _, pair := range [][2]*networking.HTTPMatchRequest{
		{nil, {Uri: regex("/a")}}, {{Uri: prefix("/a")}, {Uri: prefix("/a/b"), Method: exact("GET")}}, {{Uri: regex("/.*")}, {Uri: exact("/a")}},
		{{Uri: regex("/.*")}, {Uri: regex("/.*"), Headers: values("a", exact("1"))}}, {{Uri: exact("/a")}, {Uri: exact("/a")}},
	} {
		if a, b := read(t, pair[0], true), read(t, pair[1], true); !a.Covers(b) || b.Covers(a) != (pair[0].String() == pair[1].String()) {
			t.Errorf("%s and %s: %v, %v", a, b, a.Covers(b), b.Covers(a))
		}
	}
}
