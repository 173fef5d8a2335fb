package validate

import (
	"fmt"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
	"fairlead.dev/services/config-watcher/internal/validate/extensions"
	"fairlead.dev/services/config-watcher/internal/validate/fairlead"
	"fairlead.dev/services/config-watcher/internal/validate/kubernetes"
	"fairlead.dev/services/config-watcher/internal/validate/multicluster"
	"fairlead.dev/services/config-watcher/internal/validate/networking"
	"fairlead.dev/services/config-watcher/internal/validate/security"
	"fairlead.dev/services/config-watcher/internal/validate/telemetry"
)

// groups has the rules of each API group. A kind without a case there, and one of the Gateway API, has no rule but
// those of its decoding.
var groups = map[string]func(*check.Checker, *object.Object){
	kinds.GroupNetworking: networking.Check,
	kinds.GroupSecurity:   security.Check,
	kinds.GroupTelemetry:  telemetry.Check,
	kinds.GroupExtensions: extensions.Check,
	kinds.GroupFairlead:   fairlead.Check,
	kinds.GroupDiscovery:  kubernetes.Check,
	kinds.GroupIngress:    kubernetes.Check,
	kinds.GroupMCS:        multicluster.Check,
	"":                    kubernetes.Check,
}

// rules applies the rules of the object's group, and turns a panic into a problem, so that no object stops the process.
func rules(c *check.Checker, o *object.Object) {
	defer func() {
		if r := recover(); r != nil {
			c.Fail("", nil, fmt.Sprintf("cannot be validated: %v", r), "report this object as a defect of Fairlead")
		}
	}()
	if check := groups[o.Key.Group]; check != nil {
		check(c, o)
	}
}
