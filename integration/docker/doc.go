// Package docker decides, in its tests, whether the service's image and the stack of
// infra/compose do what they say, and whether the suites of the stores pass on stores that
// run in containers.
//
// COORD_TEST_DOCKER=require fails where there is no Docker daemon, or an image is missing; skip
// skips. Otherwise a daemon that answers is used if the images are there already, and with
// COORD_TEST_PULL=1 they are pulled. scripts/images names those it built.
package docker
