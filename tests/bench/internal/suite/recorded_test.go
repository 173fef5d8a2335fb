package suite

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestARowThatHasMovedIsNamed(t *testing.T) {
	const what = "one VirtualService, 200 sidecars"
	for _, tc := range []struct {
		name    string
		was, is line
		moved   bool
	}{
		{"as many bytes", line{what: what + ": bytes per proxy", figure: "739 B"}, line{figure: "745 B"}, false},
		{"more bytes", line{what: what + ": bytes per proxy", figure: "739 B"}, line{figure: "1.1 KiB"}, true},
		{"fewer bytes", line{what: what + ": bytes per proxy", figure: "2.2 KiB"}, line{figure: "1.1 KiB"}, true},
		{"bytes of which one event's were not counted", line{what: what + ": bytes per proxy", figure: "579 B"}, line{figure: "521 B"}, false},
		{"bytes that round otherwise", line{what: what + ": bytes per proxy", figure: "1.1 KiB"}, line{figure: "1.2 KiB"}, false},
		{"bytes where none were", line{what: what + ": bytes", figure: "0 B"}, line{figure: "60 B"}, true},
		{"names with what is measured", line{what: "cold start: bytes per proxy (CDS 1.1 MiB)", figure: "2.2 MiB"},
			line{what: "cold start: bytes per proxy (CDS 1.9 MiB)", figure: "3.0 MiB"}, true},
		{"a ratio that noise explains", line{what: what + ": CPU", floor: "9.0 ms", ratio: "1.55"}, line{floor: "12 ms", ratio: "2.30"}, false},
		{"a ratio that it does not", line{what: what + ": CPU", floor: "9.0 ms", ratio: "1.55"}, line{floor: "12 ms", ratio: "2.40"}, true},
		{"a lower ratio", line{what: what + ": CPU", floor: "9.0 ms", ratio: "3.55"}, line{floor: "12 ms", ratio: "1.20"}, false},
		{"a floor too short to compare", line{what: what + ": CPU", floor: "0.52 ms", ratio: "1.55"}, line{floor: "0.30 ms", ratio: "9.20"},
			false},
		{"a little more memory", line{what: "memory of a further proxy", figure: "75 KiB"}, line{figure: "80 KiB"}, false},
		{"much more memory", line{what: "memory of a further proxy", figure: "75 KiB"}, line{figure: "95 KiB"}, true},
		{"memory that was not given back yet", line{what: "memory after 20 s", figure: "129.7 MiB"}, line{figure: "206.2 MiB"}, false},
		{"a time", line{what: what + ": p99 change → received", ratio: "1.40"}, line{ratio: "9.40"}, false},
		{"a row that the page does not have", line{what: "another", figure: "1 B"}, line{what: what + ": bytes", figure: "9 B"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			beginMarker, endMarker := markers("table")
			path := filepath.Join(t.TempDir(), "page.md")
			before := &table{out: io.Discard}
			before.add(tc.was)
			if err := os.WriteFile(path, []byte("# Page\n"+beginMarker+"\n"+before.markdown()+"\n"+endMarker), 0o600); err != nil {
				t.Fatal(err)
			}
			rows, err := readPage(path, "table")
			if err != nil {
				t.Fatal(err)
			}
			now := &table{out: io.Discard}
			tc.is.id = "group/row"
			if tc.is.what == "" {
				tc.is.what = tc.was.what
			}
			now.add(tc.is)
			got := now.moved(path, rows)
			if (len(got) > 0) != tc.moved {
				t.Fatalf("got %v", got)
			}
			for _, row := range got {
				for _, part := range []string{"group/row", tc.was.figure, tc.is.figure, rewrite} {
					if !strings.Contains(row.err.Error(), part) {
						t.Errorf("%q does not name %q", row.err, part)
					}
				}
			}
		})
	}
}

// What the suite prints is in the table of the page under the name by which it is looked up.
func TestTheTableOfThePageIsRead(t *testing.T) {
	rows, err := readPage("../../../../docs/performance.md", "table")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"cold start, 200 sidecars: bytes per proxy", "one VirtualService, 200 sidecars: bytes per proxy",
		"endpoints that all watch, 200 sidecars: CPU",
		"reconnect to the same server, 200 sidecars: CPU", "one Service added to 1000, 200 sidecars: CPU",
		"memory at 200 sidecars: xds-server + config-watcher", "memory of a further proxy of a known class",
	} {
		if rows[name].figure == "" {
			t.Errorf("the table has no row %q", name)
		}
	}
}
