package status

import (
	"maps"
	"reflect"
	"slices"
	"time"
)

// field names of a status, as Istio's and Kubernetes' clients read them.
const (
	fieldConditions = "conditions"
	fieldGeneration = "observedGeneration"
	fieldServers    = "servers"

	conditionTrue    = "True"
	conditionFalse   = "False"
	conditionUnknown = "Unknown"
)

// Merge returns an object's status with s in it, and whether that is a change. It keeps fields and conditions that s
// does not have, and the transition time of conditions that have not changed. The arguments are not changed.
func Merge(before map[string]any, s *Status, now time.Time) (after map[string]any, changed bool) {
	if s.LoadBalancer != nil {
		return mergeLoadBalancer(before, s.LoadBalancer)
	}
	if s.API != nil {
		return mergeAPI(before, s.API, now)
	}
	after = maps.Clone(before)
	if after == nil {
		after = map[string]any{}
	}
	if s.Generation > 0 && !s.ConditionsAlone {
		after[fieldGeneration] = s.Generation
	}
	old, _ := before[fieldConditions].([]any)
	after[fieldConditions] = mergeConditions(old, s.Conditions, s.Generation, now)
	if s.Servers != nil {
		after[fieldServers] = serverTrees(s.Servers)
	}
	return after, !reflect.DeepEqual(before, after)
}

func mergeConditions(old []any, conditions []Condition, generation int64, now time.Time) []any {
	var out []any
	for _, c := range conditions {
		entry := map[string]any{
			"type": c.Type, "status": c.Text(), "reason": c.Reason, "message": c.Message, "lastTransitionTime": now.UTC().Format(time.RFC3339),
		}
		if generation > 0 {
			entry[fieldGeneration] = generation
		}
		if was := conditionOf(old, c.Type); was != nil {
			if c.KeepTrue && was["status"] == conditionTrue && generationOf(was) == generation &&
				(!c.Holds || was["reason"] == c.Reason && was["message"] != withoutProxies) {
				out = append(out, was)
				continue
			}
			if at, ok := was["lastTransitionTime"].(string); ok && was["status"] == entry["status"] {
				entry["lastTransitionTime"] = at
			}
		}
		out = append(out, entry)
	}
	for _, o := range old {
		was, _ := o.(map[string]any)
		if !slices.ContainsFunc(conditions, func(c Condition) bool { return was["type"] == c.Type }) {
			out = append(out, o)
		}
	}
	return out
}

// conditionOf returns the first condition of a type; nil if there is none.
func conditionOf(list []any, conditionType string) map[string]any {
	for _, o := range list {
		if c, _ := o.(map[string]any); c["type"] == conditionType {
			return c
		}
	}
	return nil
}

// generationOf is the observedGeneration of a condition that may have been read from JSON; 0 if it has none.
func generationOf(condition map[string]any) int64 {
	switch n := condition[fieldGeneration].(type) {
	case int64:
		return n
	case float64:
		return int64(n)
	}
	return 0
}

func serverTrees(list []Server) []any {
	out := []any{}
	for _, s := range list {
		out = append(out, map[string]any{"name": s.Name, "port": s.Port, "hosts": s.Hosts, "reason": s.Reason, "message": s.Message})
	}
	return out
}
