package rundir

import (
	"fairlead.dev/proto/fairlead/runstate"
)

// MeshProcess is a process of the mesh with its log; Pod is nil for a service.
type MeshProcess struct {
	Name, Log string
	// Program is a service's binary, "xds-server" of xds-server-0.
	Program string
	Pod     *runstate.Pod
}

// Processes lists `fairlead up` itself, the services, and the processes of the Pods.
func Processes(s *runstate.State) []MeshProcess {
	list := []MeshProcess{{Name: "fairlead", Log: Layout{Dir: s.RunDir}.Log("fairlead")}}
	for _, svc := range s.Services {
		list = append(list, MeshProcess{Name: svc.Name, Log: svc.Log, Program: svc.Program})
	}
	for i := range s.Pods {
		pod := &s.Pods[i]
		for _, c := range pod.Containers {
			list = append(list, MeshProcess{Name: c.Name, Log: c.Log, Pod: pod})
		}
		if pod.Agent != nil {
			list = append(list, MeshProcess{Name: pod.Agent.Name, Log: pod.Agent.Log, Pod: pod})
		}
	}
	return list
}
