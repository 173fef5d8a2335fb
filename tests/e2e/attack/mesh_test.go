package attack

import "testing"

// TestMeshUnderAttack runs attacks that leave the mesh whole, one after another on one mesh.
func TestMeshUnderAttack(t *testing.T) {
	f := newFixture(t)
	f.observe(t)
	if *all {
		f.opened = f.brief(t)
	}
	for _, a := range []struct {
		claim string
		quick bool
		test  func(*testing.T, *fixture)
	}{
		// First: the floods below use up what the thief may open.
		{"a neighbour does not receive a gateway's or a sidecar's key", true, testCredentials},
		{"a neighbour cannot reject in another's name", false, testForgedRejection},
		{"an xds-server receives only keys that its proxies need", false, testSecretService},
		{"unfinished messages of anybody stay within memory", true, testUnfinishedMessages},
		{"unfinished messages of a workload stay within memory", false, testUnfinishedMessagesOfAWorkload},
		{"idle connections of anybody stay within memory", false, testIdleConnections},
		{"probes are answered beside idle connections", false, testProbesAnswer},
		{"made-up names of one identity stay within memory", false, testNames},
		{"made-up classes of one identity stay within memory", false, testClasses},
		{"streams of one identity stay within memory", false, testStreams},
		{"bundle watches of one identity leave room for others", false, testBundleWatches},
		{"certificate requests of one identity leave room for others", false, testCertificateRequests},
		{"a document of aliases is refused", false, testAliases},
		{"an expired certificate is of no use on an open connection", false, testExpiredCertificate},
	} {
		t.Run(a.claim, func(t *testing.T) {
			if !a.quick {
				needsAll(t)
			}
			a.test(t, f)
		})
	}
}
