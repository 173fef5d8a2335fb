package gather

import (
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/services/installer/internal/bugreport"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/meshclient"
)

func TestAReportAsAnotherUserAnalyzesNothingWithTheOwnRights(t *testing.T) {
	for as, tasks := range map[string]int{"": 1, "joe": 0} {
		report, err := bugreport.New(filepath.Join(t.TempDir(), "r.tar.gz"), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer report.Discard()
		cluster := &meshclient.Cluster{Config: kube.Config{As: as}}
		g := &gatherer{cfg: Config{Mesh: meshclient.New(meshclient.Config{Cluster: cluster})}, report: report}
		if got := len(g.clusterAnalysis()); got != tasks || report.Gaps() != 1-tasks {
			t.Errorf("as %q: %d tasks, %d gaps", as, got, report.Gaps())
		}
	}
}
