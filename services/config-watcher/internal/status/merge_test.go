package status

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func condition(conditionType, value, reason string, generation int64) map[string]any {
	return map[string]any{"type": conditionType, "status": value, "reason": reason, "message": "was",
		"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation}
}

// TestMerge: what others have written stays, and so does a condition that has not changed.
func TestMerge(t *testing.T) {
	now := time.Date(2026, 2, 2, 0, 0, 0, 0, time.UTC)
	pending := Condition{Type: Programmed, Reason: reasonPending, Message: "1 of 2", KeepTrue: true}
	programmed := Condition{Type: Programmed, Holds: true, Reason: reasonProgrammed, Message: "2 of 2", KeepTrue: true}
	none := condition(Programmed, "True", "Programmed", 3)
	none["message"] = withoutProxies
	rejected := Condition{Type: Programmed, Reason: reasonRejected, Message: "no"}
	for name, tc := range map[string]struct {
		before  []any
		now     Condition
		changed bool
		want    string
	}{
		"the first status": {nil, pending, true, "Programmed=False/Pending/3/1 of 2/2026-02-02"},
		"others' conditions stay": {[]any{condition("Healthy", "True", "Probe", 1)}, pending, true,
			"Programmed=False/Pending/3/1 of 2/2026-02-02 Healthy=True/Probe/1/was/2026-01-01"},
		"the time of the transition stays": {[]any{condition(Programmed, "False", "Pending", 3)}, pending, true,
			"Programmed=False/Pending/3/1 of 2/2026-01-01"},
		"a programmed version stays programmed": {[]any{condition(Programmed, "True", "Programmed", 3)}, pending, false,
			"Programmed=True/Programmed/3/was/2026-01-01"},
		"its message is that of the moment": {[]any{condition(Programmed, "True", "Programmed", 3)}, programmed, false,
			"Programmed=True/Programmed/3/was/2026-01-01"},
		"a new version is not programmed by the old": {[]any{condition(Programmed, "True", "Programmed", 2)}, pending, true,
			"Programmed=False/Pending/3/1 of 2/2026-02-02"},
		"a new version that is programmed says so": {[]any{condition(Programmed, "True", "Programmed", 2)}, programmed, true,
			"Programmed=True/Programmed/3/2 of 2/2026-01-01"},
		"proxies that connect later are counted": {[]any{none}, programmed, true, "Programmed=True/Programmed/3/2 of 2/2026-01-01"},
		"they do not take it back": {[]any{none}, pending, false,
			"Programmed=True/Programmed/3/0 of 0 proxies acknowledged/2026-01-01"},
		"a rejection is not hidden": {[]any{condition(Programmed, "True", "Programmed", 3)}, rejected, true,
			"Programmed=False/Rejected/3/no/2026-02-02"},
	} {
		t.Run(name, func(t *testing.T) {
			before := map[string]any{"addresses": "others'"}
			if tc.before != nil {
				before["conditions"], before["observedGeneration"] = tc.before, int64(3)
			}
			after, changed := Merge(before, &Status{Generation: 3, Conditions: []Condition{tc.now}}, now)
			var got []string
			for _, c := range after["conditions"].([]any) {
				m := c.(map[string]any)
				got = append(got, fmt.Sprintf("%s=%s/%s/%v/%s/%.10s", m["type"], m["status"], m["reason"], m["observedGeneration"], m["message"],
					m["lastTransitionTime"]))
			}
			if strings.Join(got, " ") != tc.want || changed != tc.changed || after["addresses"] != "others'" {
				t.Errorf("changed %v, %v\ngot  %s\nwant %s", changed, after["addresses"], strings.Join(got, " "), tc.want)
			}
		})
	}
}

// TestConditionsAlone: a status that has conditions alone gets no observedGeneration beside them, which its definition
// would drop, so that it were written again for ever.
func TestConditionsAlone(t *testing.T) {
	s := &Status{Generation: 3, ConditionsAlone: true, Conditions: []Condition{{Type: "Valid", Holds: true, Reason: "Valid"}}}
	after, changed := Merge(nil, s, time.Unix(0, 0))
	if _, beside := after["observedGeneration"]; beside || !changed {
		t.Errorf("%v", after)
	}
	if again, changed := Merge(after, s, time.Unix(9, 0)); changed {
		t.Errorf("written again: %v", again)
	}
}
