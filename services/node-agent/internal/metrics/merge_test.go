package metrics

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Expositions become one of the wanted format; what they have twice is there once.
func TestMerge(t *testing.T) {
	envoy := source{limit: 1 << 20, rename: standardName}
	app := source{limit: 1 << 20, check: true, whole: true}
	appOM := app
	appOM.format = openMetrics
	type part struct {
		source
		text, err string
	}
	for _, tc := range []struct {
		name   string
		format format
		parts  []part
		want   string
	}{
		{"text stays as it is, without comments", text, []part{
			{envoy, "# a comment\n# TYPE envoy_a counter\nenvoy_a{x=\"y # z\"} 1\n\n# HELP b B\n# TYPE b gauge\nb{} 2 3\n# EOF\n", ""},
		}, "# TYPE envoy_a counter\nenvoy_a{x=\"y # z\"} 1\n# HELP b B\n# TYPE b gauge\nb{} 2 3\n"},
		{"standard metrics have Istio's names", text, []part{
			{envoy, "# TYPE envoy_istio_requests_total counter\nenvoy_istio_requests_total{a=\"envoy_istio_\"} 1\n# TYPE envoy_istio_x " +
				"histogram\nenvoy_istio_x_bucket{le=\"+Inf\"} 2\n", ""},
		}, "# TYPE istio_requests_total counter\nistio_requests_total{a=\"envoy_istio_\"} 1\n# TYPE istio_x " +
			"histogram\nistio_x_bucket{le=\"+Inf\"} 2\n"},
		{"an application keeps its names", text, []part{{app, "envoy_istio_requests_total 1", ""}}, "envoy_istio_requests_total 1\n"},
		{"a family of two sources has one TYPE, and all samples", text, []part{
			{envoy, "# HELP a A\n# TYPE a counter\na{x=\"1\"} 1\n", ""},
			{app, "# HELP a other\n# TYPE a gauge\na{x=\"2\"} 2\n# TYPE c gauge\nc 1\n# TYPE c gauge\nc{x=\"1\"} 1\n", ""},
		}, "# HELP a A\n# TYPE a counter\na{x=\"1\"} 1\na{x=\"2\"} 2\n# TYPE c gauge\nc 1\nc{x=\"1\"} 1\n"},
		{"TYPE after samples is left out", text, []part{{app, "a 1\n# TYPE a counter\na{x=\"1\"} 2\n", ""}}, "a 1\na{x=\"1\"} 2\n"},
		{"lines that no scraper reads are left out", text, []part{
			{app, "a 1\n<html>\nb{x=\"1} 1\nc{x=\"1\"}\nd one\ne 1 2 3\nf{x='1'} 1\ng{x=\"\\z\"} 1\nh{x=\"\xff\"} 1\ni 0x1p1\nj 1_0\n# TYPE k " +
				"fancy\nk 1\nlast 1", "11 lines are malformed"},
		}, "a 1\nk 1\nlast 1\n"},
		{"blanks and tabs of text are read", text, []part{
			{app, "#  HELP\ta   some  help\n# TYPE\ta\tcounter\na\t{ x = \"1\" , } \t5\r\n", ""},
		}, "# HELP a some  help\n# TYPE a counter\na{ x = \"1\" , } 5\n"},
		{"OpenMetrics stays as it is, with one end", openMetrics, []part{
			{appOM, "# HELP a x\n# TYPE a counter\n# UNIT a seconds\na_total 1.0 1.5 # {trace_id=\"1\"} 0.5 1.4\na_created 1\n# EOF\n", ""},
			{appOM, "# TYPE b gauge\nb 1\n# EOF\nc 1\n", ""},
		}, "# HELP a x\n# TYPE a counter\n# UNIT a seconds\na_total 1.0 1.5 # {trace_id=\"1\"} 0.5 1.4\na_created 1\n# TYPE b gauge\nb 1\n# " +
			"EOF\n"},
		{"text becomes OpenMetrics", openMetrics, []part{
			{envoy, "# HELP a say \"x\"\n# TYPE a counter\na{} 1 1500\n# TYPE b_total counter\nb_total 2\n# TYPE c untyped\nc NaN\n# TYPE d " +
				"histogram\nd_bucket{le=\"1\"} 1\nd_sum 1\nd_count 1\n", ""},
		}, "# HELP a say \\\"x\\\"\n# TYPE a unknown\na{} 1 1.500\n# TYPE b counter\nb_total 2\n# TYPE c unknown\nc NaN\n# TYPE d " +
			"histogram\nd_bucket{le=\"1\"} 1\nd_sum 1\nd_count 1\n# EOF\n"},
		{"OpenMetrics becomes text", text, []part{
			{appOM, "# HELP a say \\\"x\\\"\n# TYPE a counter\n# UNIT a s\na_total 1 1.5 # {t=\"1\"} 1\n# TYPE b unknown\nb 1\n# TYPE c " +
				"info\nc_info{v=\"1\"} 1\n# TYPE d gaugehistogram\nd_gcount 1\n# EOF\n", ""},
		}, "# HELP a_total say \"x\"\n# TYPE a_total counter\na_total 1 1500\n# TYPE b untyped\nb 1\n# TYPE c_info gauge\nc_info{v=\"1\"} " +
			"1\nd_gcount 1\n"},
		{"OpenMetrics without its end is incomplete", openMetrics, []part{{appOM, "a 1\n", "without # EOF"}}, "a 1\n# EOF\n"},
		{"malformed OpenMetrics", openMetrics, []part{
			{appOM, "a{ x=\"1\"} 1\na{x=\"1\",} 1\nb 1 # {x=\"1\"}\nc 1 2 # x\nd 1\n# EOF\n", "4 lines are malformed"},
		}, "d 1\n# EOF\n"},
		{"a limit cuts at a line", text, []part{{source{limit: 10, check: true}, "aaaa 1\nbbbb 2\n", "10 bytes: larger than permitted"},
			{app, "c 1\n", ""}}, "aaaa 1\nc 1\n"},
		{"a line without end is left out", text,
			[]part{{app, "a 1\nb{x=\"" + strings.Repeat("y", 3*maxLine) + "\"} 1\nc 1\n", "1 lines are malformed, or longer"}}, "a 1\nc 1\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			m := newMerger(&out, tc.format)
			for _, p := range tc.parts {
				err := m.copy(strings.NewReader(p.text), p.source)
				if (err == nil) != (p.err == "") || err != nil && !strings.Contains(err.Error(), p.err) {
					t.Errorf("error %v, want %q", err, p.err)
				}
			}
			m.finish()
			if out.String() != tc.want {
				t.Errorf("got\n%s\nwant\n%s", out.String(), tc.want)
			}
		})
	}
}

// A source that breaks off leaves whole lines.
func TestMergeOfASourceThatBreaksOff(t *testing.T) {
	var out strings.Builder
	m := newMerger(&out, text)
	broken := errors.New("reset by peer")
	if err := m.copy(io.MultiReader(strings.NewReader("a 1\nb{x=\"hal"), iotest.ErrReader(broken)), source{limit: 1 << 20}); !errors.Is(err,
		broken) {
		t.Errorf("error %v", err)
	}
	m.finish()
	if out.String() != "a 1\n" {
		t.Errorf("%q", out.String())
	}
}

// Whatever an application exposes, the result in text is read by Prometheus' parser, and in OpenMetrics it has one end.
func FuzzMerge(f *testing.F) {
	f.Add("# TYPE a counter\na{x=\"1\"} 1 2\n# TYPE a gauge\na 1\n", "# TYPE b counter\nb_total 1 # {x=\"1\"} 1\n# EOF\n")
	f.Add("# HELP a \\n\"\na_bucket{le=\"+Inf\"} 1\n", "# TYPE a info\na_info{} 1\na 1\n")
	f.Add("# TYPE d histogram\nd_bucket 1\nd_sum 1\nd_count 1\n# TYPE d_count gauge\nd_count 1\n", "")
	f.Fuzz(func(t *testing.T, first, second string) {
		for _, format := range []format{text, openMetrics} {
			var out strings.Builder
			m := newMerger(&out, format)
			_ = m.copy(strings.NewReader(first), source{limit: 1 << 20, check: true, format: text})
			_ = m.copy(strings.NewReader(second), source{limit: 1 << 20, check: true, format: openMetrics, whole: true})
			m.finish()
			if format == openMetrics {
				if lines := strings.Split(out.String(), "\n"); lines[len(lines)-2] != "# EOF" || strings.Count(out.String(), "# EOF\n") != 1 {
					t.Fatalf("ends: %q", out.String())
				}
				continue
			}
			for line := range strings.Lines(out.String()) { // families may be interleaved, which this parser takes for two
				parser := expfmt.NewTextParser(model.UTF8Validation)
				if _, err := parser.TextToMetricFamilies(strings.NewReader(line)); err != nil && !strings.Contains(err.Error(), "histogram") &&
					!strings.Contains(err.Error(), "le") {
					t.Fatalf("%v: %q of\n%s", err, line, out.String())
				}
			}
		}
	})
}

// Names without end, which an application may have, cost a bounded amount of memory.
func TestRememberedNamesAreBounded(t *testing.T) {
	m := newMerger(io.Discard, text)
	var exposition strings.Builder
	for i := range 2 * maxNames / (maxLine / 2) {
		fmt.Fprintf(&exposition, "a%d_%s 1\n", i, strings.Repeat("x", maxLine/2))
	}
	if err := m.copy(strings.NewReader(exposition.String()), source{limit: maxApplication, check: true}); err != nil {
		t.Fatal(err)
	}
	bytes := 0
	for name := range m.seen {
		bytes += len(name)
	}
	if bytes == 0 || bytes > maxNames {
		t.Errorf("%d bytes of names are remembered, want at most %d", bytes, maxNames)
	}
}
