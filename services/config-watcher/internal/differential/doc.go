// Package differential tests that subscribers hold what package normalise makes of the objects in force from scratch,
// whatever the history: random changes in several sources, divided into random revisions.
package differential
