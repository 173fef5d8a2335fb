package local

import (
	"testing"

	"fairlead.dev/proto/fairlead/runstate"
)

func TestADeploymentOfAnotherNamespace(t *testing.T) {
	state := &runstate.State{Pods: []runstate.Pod{
		{Name: "web-0", Namespace: "default", Workload: "web"}, {Name: "web-1", Namespace: "default", Workload: "web"},
		{Name: "db-0", Namespace: "data", Workload: "db"}, {Name: "db-0", Namespace: "default", Workload: "db"},
	}}
	for _, tc := range []struct{ name, namespace, want string }{
		{"deploy/web", "defaut", `no Deployment is in namespace "defaut"; did you mean -n default?`},
		{"deploy/web", "data", `namespace "data" has no Deployment "web"; there is one in namespace default: add -n default`},
		{"db", "banana", `no Deployment is in namespace "banana"; there is one in namespace data, default: add -n data`},
		{"wbe", "default", `no Deployment is named "wbe"; did you mean "web"?`},
	} {
		if _, err := podsOfDeployment(state, tc.name, tc.namespace); err == nil || err.Error() != tc.want {
			t.Errorf("%s -n %s: %v, want %s", tc.name, tc.namespace, err, tc.want)
		}
	}
}
