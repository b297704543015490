// See config.h.
#pragma once
