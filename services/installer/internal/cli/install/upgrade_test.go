package install

import (
	"bytes"
	"strings"
	"testing"
)

func TestEligibleVersions(t *testing.T) {
	for _, tc := range []struct{ from, to, says, refuses string }{
		{"1.4.0", "1.4.0", "upgraded", ""},
		{"1.4.0", "1.4.3", "upgraded", ""},
		{"1.4.9", "1.5.0", "upgraded", ""},
		{"v1.4.9", "1.5.0-rc.1", "upgraded", ""},
		{"1.4.0", "1.6.0", "", "more than one minor version away"},
		{"1.4.0", "2.0.0", "", "more than one minor version away"},
		{"1.5.0", "1.4.9", "", "is older"},
		{"1.4.1", "1.4.0", "", "is older"},
		{"", "1.4.0", "versions are not compared", ""},
		{"latest", "1.4.0", "versions are not compared", ""},
	} {
		text, err := eligible(tc.from, tc.to)
		if (err != nil) != (tc.refuses != "") || err != nil && !strings.Contains(err.Error(), tc.refuses) || !strings.Contains(text, tc.says) {
			t.Errorf("%q to %q: %q, %v", tc.from, tc.to, text, err)
		}
	}
}

func TestProgress(t *testing.T) {
	var plain, bars bytes.Buffer
	lines := &progressLines{w: &plain}
	lines.Step("pilot", 1, 4, "ConfigMap mesh/x")
	lines.Step("pilot", 3, 4, "Deployment mesh/x: 0 of 1 Pods are ready")
	lines.Step("pilot", 3, 4, "Deployment mesh/x: 0 of 1 Pods are ready")
	lines.Done("pilot", "4 created")
	if got, want := plain.String(), "pilot: Deployment mesh/x: 0 of 1 Pods are ready\npilot: 4 created\n"; got != want {
		t.Errorf("%q, expected %q", got, want)
	}
	drawn := &progressBars{w: &bars, width: func() int { return 40 }}
	drawn.Step("pilot", 2, 4, "ConfigMap mesh/x\x1b[2J")
	drawn.Done("pilot", "4 created")
	if got, want := bars.String(), "\r\x1b[K  ██████████░░░░░░░░░░ 2/4 pilot: Conf…\r\x1b[K✔ pilot: 4 created\n"; got != want {
		t.Errorf("%q, expected %q", got, want)
	}
}
