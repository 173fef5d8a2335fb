package injectcheck

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/proto/fairlead/contract"
)

func TestALabelThatNamesNoRevisionIsTheReason(t *testing.T) {
	pod := &corev1.Pod{}
	for _, tc := range []struct {
		labels map[string]string
		known  []string
		want   string
	}{
		{map[string]string{contract.RevisionLabel: "prd"}, []string{"canary", "prod"},
			"is prd, and no revision or tag is named so; there are canary, prod (`fairlead tag list`)"},
		{map[string]string{contract.RevisionLabel: "prod"}, []string{"canary", "prod"}, ""},
		{map[string]string{contract.RevisionLabel: "prd"}, nil, ""},
		{map[string]string{contract.RevisionLabel: "prd", contract.InjectionLabel: "enabled"}, []string{"canary"}, ""},
		{map[string]string{contract.InjectionLabel: "enabled"}, []string{"canary"}, ""},
	} {
		_, asked := Uninjected(pod, tc.labels)
		if got := Nobodys(asked, tc.known); !strings.HasSuffix(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%v, %v: %q", tc.labels, tc.known, got)
		}
	}
}
